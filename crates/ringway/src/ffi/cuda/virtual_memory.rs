//! The driver's functions for memory whose addresses and allocations are apart (cuMem), of CUDA alone.
//!
//! *Invariant:* as that of the driver they belong to; a driver that lacks one of them has none.

#![allow(unsafe_code, reason = "function pointers into the vendor's driver")]

use std::ffi::{c_int, c_ulonglong, c_void};

use libloading::Library;

use super::{Address, function};

/// An allocation, which may be mapped at any number of addresses.
pub(crate) type Allocation = c_ulonglong;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(crate) const DESCRIPTOR: c_int = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const ON_DEVICE: c_int = 1;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED: c_int = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_AND_WRITE: c_int = 3;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Location {
    kind: c_int,
    device: c_int,
}

/// `CUmemAllocationProp`: what memory is made like.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Properties {
    kind: c_int,
    handles: c_int,
    location: Location,
    windows: usize,
    flags: [u8; 8],
}

impl Properties {
    /// Memory of a device that can be passed to other processes as a descriptor.
    pub(crate) const fn shared(device: c_int) -> Self {
        let location = Location { kind: ON_DEVICE, device };
        Self { kind: PINNED, handles: DESCRIPTOR, location, windows: 0, flags: [0; 8] }
    }
}

/// `CUmemAccessDesc`: who may use memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    location: Location,
    flags: c_int,
}

impl Access {
    /// A device may read and write.
    pub(crate) const fn whole(device: c_int) -> Self {
        Self { location: Location { kind: ON_DEVICE, device }, flags: READ_AND_WRITE }
    }
}

const _: () = assert!(size_of::<Properties>() == 32 && size_of::<Access>() == 12);

macro_rules! functions {
    ($($field:ident: $symbol:literal, ($($argument:ty),*);)*) => {
        /// The functions.
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct VirtualMemory {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl VirtualMemory {
            /// Those of a library, which outlives what is returned.
            pub(super) fn load(library: &Library) -> Option<Self> {
                const NAME: &str = "the CUDA driver";
                Some(Self {
                    // SAFETY: the types are those of the vendor's header; the driver keeps both together.
                    $($field: unsafe { function(library, NAME, $symbol) }.ok()?,)*
                })
            }
        }
    };
}

functions! {
    granularity: "cuMemGetAllocationGranularity", (*mut usize, *const Properties, c_int);
    create: "cuMemCreate", (*mut Allocation, usize, *const Properties, c_ulonglong);
    release: "cuMemRelease", (Allocation);
    retain: "cuMemRetainAllocationHandle", (*mut Allocation, *mut c_void);
    export: "cuMemExportToShareableHandle", (*mut c_void, Allocation, c_int, c_ulonglong);
    import: "cuMemImportFromShareableHandle", (*mut Allocation, *mut c_void, c_int);
    reserve: "cuMemAddressReserve", (*mut Address, usize, usize, Address, c_ulonglong);
    free_addresses: "cuMemAddressFree", (Address, usize);
    map: "cuMemMap", (Address, usize, usize, Allocation, c_ulonglong);
    unmap: "cuMemUnmap", (Address, usize);
    set_access: "cuMemSetAccess", (Address, usize, *const Access, usize);
}

/// Attributes of devices: whether they have such memory, and pass it as descriptors.
pub(crate) const HAS_IT: c_int = 102;
pub(crate) const HAS_DESCRIPTORS: c_int = 103;
