#![allow(unsafe_code, reason = "reads and writes through pointers that a C program passes")]
//! Arguments as a C program gives them.
//!
//! Each type here stands for one promise of nccl.h about a pointer. Their fields are private and
//! nothing makes one from a pointer of Rust's: they come into being in the signature of an exported
//! function alone, so whoever holds one holds the C caller's promise.

use std::ffi::{CStr, c_char};

use ringway::{Error, Result};

/// Where a result goes: NULL, or writable until the call has returned, and for results of groups
/// and of non-blocking communicators until those are done.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

// SAFETY: the C program's promise is about the memory, whichever thread writes it, and what is
// written are C's plain values.
unsafe impl<T> Send for Out<T> {}

impl<T> Out<T> {
    /// Refuses NULL.
    pub(crate) fn check(self, name: &str) -> Result<()> {
        if self.0.is_null() { Err(Error::argument(format!("{name} is NULL"))) } else { Ok(()) }
    }

    /// Whether it is there at all.
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Writes a result; NULL is refused.
    pub(crate) fn put(self, name: &str, value: T) -> Result<()> {
        self.check(name)?;
        // SAFETY: not NULL, so writable by the type's promise.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Writes the result at `index` of an array; NULL is refused.
    pub(crate) fn put_at(self, name: &str, index: usize, value: T) -> Result<()> {
        self.check(name)?;
        // SAFETY: the caller of an array argument promises as many elements as it says.
        unsafe { self.0.wrapping_add(index).write(value) };
        Ok(())
    }
}

impl<T: Copy> Out<T> {
    /// Reads what stands there now; NULL is refused.
    pub(crate) fn get(self, name: &str) -> Result<T> {
        self.check(name)?;
        // SAFETY: not NULL, so readable by the type's promise (it is used for structures that
        // the program has initialized).
        Ok(unsafe { self.0.read() })
    }
}

/// Values to be read: NULL, or readable during the call, and the scalar of a reduction as long as
/// that is used.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

// SAFETY: as for `Out`; what is read are C's plain values.
unsafe impl<T> Send for In<T> {}
// SAFETY: nothing is ever written through it.
unsafe impl<T> Sync for In<T> {}

impl<T: Copy> In<T> {
    /// Where they are.
    pub(crate) fn address(self) -> usize {
        self.0.expose_provenance()
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The value; nothing where the pointer is NULL.
    pub(crate) fn read(self) -> Option<T> {
        // SAFETY: not NULL, so readable by the type's promise.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }

    /// So many values, as many as the program says there are.
    pub(crate) fn read_many(self, name: &str, count: usize) -> Result<Vec<T>> {
        if count > 0 && self.0.is_null() {
            return Err(Error::argument(format!("{name} is NULL")));
        }
        let at = |index: usize| self.0.wrapping_add(index);
        // SAFETY: the program promises that `count` values stand there.
        Ok((0..count).map(|index| unsafe { at(index).read_unaligned() }).collect())
    }
}

/// A structure that says itself how long it is: NULL, or readable for its first 16 bytes and then
/// for as many as the first eight of them say.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Versioned(*const u8);

impl Versioned {
    /// The first 16 bytes; nothing where the pointer is NULL.
    pub(crate) fn head(self) -> Option<[u8; 16]> {
        In(self.0.cast::<[u8; 16]>()).read()
    }

    /// The first `count` bytes, which the structure says it has.
    pub(crate) fn bytes(self, count: usize) -> Result<Vec<u8>> {
        In(self.0).read_many("config", count)
    }
}

/// A C string: NULL, or readable up to its end.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// The string whose address a structure holds.
    ///
    /// # Safety
    /// The address is 0 or that of a C string.
    pub(crate) unsafe fn at(address: usize) -> Self {
        Self(std::ptr::with_exposed_provenance(address))
    }

    /// A copy; nothing where the pointer is NULL.
    pub(crate) fn read(self) -> Option<String> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: not NULL, so a C string by the type's promise.
        let text = unsafe { CStr::from_ptr(self.0) };
        Some(text.to_string_lossy().into_owned())
    }
}

/// A buffer to be filled: NULL, or writable for as many bytes as the program says.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Room(*mut u8);

impl Room {
    /// Copies bytes there; the caller has compared them with the room there is.
    pub(crate) fn fill(self, bytes: &[u8]) -> Result<()> {
        if self.0.is_null() {
            return Err(Error::argument("the buffer for the value is NULL"));
        }
        // SAFETY: the program promises room for at least so many bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0, bytes.len()) };
        Ok(())
    }
}
