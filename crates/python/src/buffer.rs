#![allow(unsafe_code, reason = "asks Python's C interface and DLPack's structures where memory is")]
//! Where the memory of Python's objects is: by the buffer protocol (bytearray, array.array, NumPy), DLPack (PyTorch, CuPy,
//! JAX) or an array interface (types of ml_dtypes, older GPU arrays). Nothing is copied.
//!
//! The buffer protocol's functions are declared here: they are older than Python 3.10, but part of what a module that works
//! with all versions may use only since 3.11. Their structure has been the same all along.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyTuple};
use ringway::DataType;

use crate::error::argument;

/// `Py_buffer`.
#[repr(C)]
struct RawBuffer {
    buf: *mut c_void,
    obj: *mut ffi::PyObject,
    len: isize,
    itemsize: isize,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut isize,
    strides: *mut isize,
    suboffsets: *mut isize,
    internal: *mut c_void,
}

/// `PyBUF_FULL_RO`: whatever its form is, also if it cannot be written.
const FULL_RO: c_int = 0x011c;

// These are in every CPython since 3.0, with these arguments.
unsafe extern "C" {
    fn PyObject_GetBuffer(object: *mut ffi::PyObject, view: *mut RawBuffer, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut RawBuffer);
}

/// A view that the buffer protocol gave; given back when it goes.
struct View(Box<RawBuffer>);

// SAFETY: it is used and dropped only where Python's lock is held (it is in a Python object), by whatever thread.
unsafe impl Send for View {}
// SAFETY: as above; what it points to does not change as long as it is held.
unsafe impl Sync for View {}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: PyObject_GetBuffer filled it, it has not moved, and Python's lock is held.
        unsafe { PyBuffer_Release(&raw mut *self.0) };
    }
}

/// DLPack's structures.
#[repr(C)]
#[derive(Clone, Copy)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: *mut c_void,
    flags: u64,
    tensor: Tensor,
}

const PLAIN: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const FLAG_READ_ONLY: u64 = 1;

/// DLPack's numbers of devices.
const CPU: i32 = 1;
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;
const ROCM: i32 = 10;
const ROCM_HOST: i32 = 11;
const CUDA_MANAGED: i32 = 13;

/// What is held as long as the memory is used.
enum Held {
    View { _view: View },
    Object { _object: Py<PyAny> },
}

/// The memory of an object.
#[pyclass(frozen, module = "ringway._native")]
pub(crate) struct Buffer {
    /// Where it begins.
    #[pyo3(get)]
    address: usize,
    /// Elements.
    #[pyo3(get)]
    count: usize,
    /// Bytes of an element.
    #[pyo3(get)]
    itemsize: usize,
    /// The number of the element type; None where reductions do not know it.
    #[pyo3(get)]
    data_type: Option<u8>,
    /// The element type in words.
    #[pyo3(get)]
    type_name: String,
    /// Whether it must not be written.
    #[pyo3(get)]
    readonly: bool,
    /// Whether it is in a GPU's memory.
    #[pyo3(get)]
    on_gpu: bool,
    /// The number of that GPU.
    #[pyo3(get)]
    device: i32,
    _held: Held,
}

#[pymethods]
impl Buffer {
    /// The memory of `object`. `stream` is the one on which it will be used, where it is on a GPU.
    #[new]
    #[pyo3(signature = (object, stream=None))]
    fn new(object: &Bound<'_, PyAny>, stream: Option<usize>) -> PyResult<Self> {
        let refused = match Self::by_protocol(object)? {
            Ok(buffer) => return Ok(buffer),
            Err(refused) => refused,
        };
        if object.hasattr("__dlpack__")? {
            match Self::by_dlpack(object, stream) {
                Err(error) if error.is_instance_of::<PyBufferError>(object.py()) => {
                    if !object.hasattr("__array_interface__")? {
                        let kind = object.get_type().name()?;
                        let message = format!(
                            "a {kind} does not hand out its memory ({}); give a dense array, and of a tensor that needs \
                             gradients what its detach() gives",
                            error.value(object.py())
                        );
                        return Err(argument(object.py(), message));
                    }
                }
                outcome => return outcome,
            }
        }
        for (name, on_gpu) in [("__cuda_array_interface__", true), ("__array_interface__", false)] {
            if object.hasattr(name)? {
                return Self::by_interface(object, name, on_gpu);
            }
        }
        let kind = object.get_type().name()?;
        Err(argument(
            object.py(),
            format!(
                "a {kind} has no memory that others can use ({refused}); give a bytearray, a memoryview, an array, a \
                 NumPy array, or what speaks DLPack (PyTorch, CuPy, JAX)"
            ),
        ))
    }

    /// Its size in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.count * self.itemsize
    }

    fn __repr__(&self) -> String {
        let Self { count, type_name, on_gpu, device, .. } = self;
        let place = if *on_gpu { format!("GPU {device}") } else { "host".to_owned() };
        format!("<ringway.Buffer of {count} {type_name}, {place}>")
    }
}

impl Buffer {
    /// By the buffer protocol; inside, why the object does not have it.
    fn by_protocol(object: &Bound<'_, PyAny>) -> PyResult<Result<Self, String>> {
        let py = object.py();
        let mut raw = Box::new(RawBuffer {
            buf: ptr::null_mut(),
            obj: ptr::null_mut(),
            len: 0,
            itemsize: 0,
            readonly: 0,
            ndim: 0,
            format: ptr::null_mut(),
            shape: ptr::null_mut(),
            strides: ptr::null_mut(),
            suboffsets: ptr::null_mut(),
            internal: ptr::null_mut(),
        });
        // SAFETY: the object is alive, the structure is ours, and Python's lock is held.
        if unsafe { PyObject_GetBuffer(object.as_ptr(), &raw mut *raw, FULL_RO) } != 0 {
            let error = PyErr::fetch(py);
            let expected = error.is_instance_of::<PyTypeError>(py)
                || error.is_instance_of::<PyBufferError>(py)
                || error.is_instance_of::<pyo3::exceptions::PyValueError>(py);
            return if expected { Ok(Err(error.value(py).to_string())) } else { Err(error) };
        }
        let view = View(raw);
        let raw = &view.0;
        let dimensions = usize::try_from(raw.ndim).unwrap_or(0);
        // SAFETY: it has as many entries as dimensions, or is null.
        let shape = unsafe { list(raw.shape, dimensions) };
        // SAFETY: as above.
        let strides = unsafe { list(raw.strides, dimensions) };
        let itemsize = usize::try_from(raw.itemsize).unwrap_or(0).max(1);
        let wide = |list: Vec<isize>| list.into_iter().map(|one| one as i64).collect::<Vec<_>>();
        let apart = strides.is_some_and(|strides| {
            let shape = shape.clone().unwrap_or_default();
            !is_contiguous(&wide(shape), &wide(strides), raw.itemsize as i64)
        });
        if apart || !raw.suboffsets.is_null() {
            return Err(not_contiguous(object));
        }
        let format = if raw.format.is_null() {
            "B".to_owned()
        } else {
            // SAFETY: the protocol says that it is a C string that lives as long as the view.
            unsafe { CStr::from_ptr(raw.format) }.to_string_lossy().into_owned()
        };
        let (data_type, type_name) = of_format(&format, itemsize);
        Ok(Ok(Self {
            address: raw.buf.expose_provenance(),
            count: usize::try_from(raw.len).unwrap_or(0) / itemsize,
            itemsize,
            data_type: data_type.map(|one| one as u8),
            type_name,
            readonly: raw.readonly != 0,
            on_gpu: false,
            device: 0,
            _held: Held::View { _view: view },
        }))
    }

    fn by_dlpack(object: &Bound<'_, PyAny>, stream: Option<usize>) -> PyResult<Self> {
        let py = object.py();
        let (device_type, device): (i32, i32) =
            object.call_method0("__dlpack_device__")?.extract()?;
        let on_gpu = match device_type {
            CPU | CUDA_HOST | ROCM_HOST => false,
            CUDA | CUDA_MANAGED | ROCM => true,
            other => {
                return Err(argument(
                    py,
                    format!(
                        "memory on DLPack's device {other} is not supported; copy it to the host first"
                    ),
                ));
            }
        };
        let words = PyDict::new(py);
        if on_gpu {
            // CUDA's default stream has two names; DLPack calls it 1, and ROCm's 0.
            let stream = match stream.unwrap_or(0) {
                0 if device_type != ROCM => 1,
                handle => handle,
            };
            words.set_item("stream", stream)?;
        }
        words.set_item("max_version", (1, 1))?;
        let capsule = match object.call_method("__dlpack__", (), Some(&words)) {
            // Who does not know versions has none.
            Err(error) if error.is_instance_of::<PyTypeError>(py) => {
                words.del_item("max_version")?;
                object.call_method("__dlpack__", (), Some(&words))?
            }
            outcome => outcome?,
        };
        let capsule = capsule.cast_into::<PyCapsule>()?;
        let (tensor, readonly) = tensor(&capsule)?;
        let dimensions = usize::try_from(tensor.ndim).unwrap_or(0);
        // SAFETY: DLPack: as many entries as dimensions, alive as long as the capsule.
        let shape = unsafe { list(tensor.shape, dimensions) }.unwrap_or_default();
        // SAFETY: as above, or null where it is contiguous.
        let strides = unsafe { list(tensor.strides, dimensions) };
        if strides.is_some_and(|strides| !is_contiguous(&shape, &strides, 1)) {
            return Err(not_contiguous(object));
        }
        let (data_type, type_name) = of_dlpack(tensor.code, tensor.bits, tensor.lanes);
        let offset = usize::try_from(tensor.byte_offset).unwrap_or(0);
        Ok(Self {
            address: tensor.data.expose_provenance() + offset,
            count: shape.iter().map(|one| usize::try_from(*one).unwrap_or(0)).product(),
            itemsize: usize::from(tensor.bits).div_ceil(8) * usize::from(tensor.lanes.max(1)),
            data_type: data_type.map(|one| one as u8),
            type_name,
            readonly,
            on_gpu,
            device,
            // As long as nobody takes it, the capsule owns the tensor, and frees it when it goes.
            _held: Held::Object { _object: capsule.into_any().unbind() },
        })
    }

    /// By `__array_interface__` or `__cuda_array_interface__`, which are one but for the place.
    fn by_interface(object: &Bound<'_, PyAny>, name: &str, on_gpu: bool) -> PyResult<Self> {
        let interface = object.getattr(name)?.cast_into::<PyDict>()?;
        let wanted = |key: &str| {
            let missing = || argument(object.py(), format!("{name} has no {key:?}"));
            interface.get_item(key)?.ok_or_else(missing)
        };
        let (address, readonly): (usize, bool) = wanted("data")?.extract()?;
        let shape: Vec<i64> = wanted("shape")?.extract()?;
        let form: String = wanted("typestr")?.extract()?;
        let itemsize: usize = form.get(2..).and_then(|size| size.parse().ok()).unwrap_or(1);
        let strides = interface.get_item("strides")?.filter(|strides| !strides.is_none());
        if let Some(strides) = strides {
            let strides: Vec<i64> = strides.cast::<PyTuple>()?.extract()?;
            let bytes = i64::try_from(itemsize).unwrap_or(1);
            if !is_contiguous(&shape, &strides, bytes) {
                return Err(not_contiguous(object));
            }
        }
        let named = object.getattr("dtype").and_then(|one| one.getattr("name"));
        let named: Option<String> = named.and_then(|name| name.extract()).ok();
        let (data_type, type_name) = of_name(named.as_deref(), &form, itemsize);
        Ok(Self {
            address,
            count: shape.iter().map(|one| usize::try_from(*one).unwrap_or(0)).product(),
            itemsize,
            data_type: data_type.map(|one| one as u8),
            type_name,
            readonly,
            on_gpu,
            device: 0,
            _held: Held::Object { _object: object.clone().unbind() },
        })
    }
}

/// The tensor in a capsule, and whether it must not be written.
fn tensor(capsule: &Bound<'_, PyCapsule>) -> PyResult<(Tensor, bool)> {
    let pointer = |name: &CStr| {
        // SAFETY: the capsule is alive, and Python's lock is held.
        if unsafe { ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) } == 0 {
            return ptr::null_mut();
        }
        // SAFETY: as above, and its name is this.
        unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr()) }
    };
    let plain: *mut Tensor = pointer(PLAIN).cast();
    if !plain.is_null() {
        // SAFETY: DLPack: a capsule of that name holds a structure that begins with a tensor.
        return Ok((unsafe { plain.read() }, false));
    }
    let versioned: *mut Versioned = pointer(VERSIONED).cast();
    if versioned.is_null() {
        return Err(argument(capsule.py(), "__dlpack__ gave a capsule that holds no tensor"));
    }
    // SAFETY: DLPack: a capsule of that name holds this structure; its version comes first in all of them.
    let major = unsafe { versioned.cast::<u32>().read() };
    if major != 1 {
        let text = format!("version {major} of DLPack is not known; versions 0 and 1 are");
        return Err(argument(capsule.py(), text));
    }
    // SAFETY: as above, and all versions 1 have this form.
    let versioned = unsafe { versioned.read() };
    Ok((versioned.tensor, versioned.flags & FLAG_READ_ONLY != 0))
}

/// A C array as a vector; nothing where it is null.
///
/// # Safety
/// It is null or has `length` entries.
unsafe fn list<T: Copy>(from: *const T, length: usize) -> Option<Vec<T>> {
    if from.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    Some(unsafe { std::slice::from_raw_parts(from, length) }.to_vec())
}

/// Whether elements follow each other without gaps, the last dimension fastest; an element is `unit` strides wide.
fn is_contiguous(shape: &[i64], strides: &[i64], unit: i64) -> bool {
    let mut wanted = unit;
    if shape.contains(&0) {
        return true;
    }
    for (length, stride) in shape.iter().zip(strides).rev() {
        if *length != 1 && *stride != wanted {
            return false;
        }
        wanted *= length;
    }
    true
}

fn not_contiguous(object: &Bound<'_, PyAny>) -> PyErr {
    argument(
        object.py(),
        "the array is not contiguous: its elements have gaps between them, or another order; pass a contiguous copy \
         (numpy.ascontiguousarray(x), x.contiguous())",
    )
}

/// An element type by its name as NumPy has it, where it is one that can be reduced.
fn known(name: &str) -> Option<DataType> {
    Some(match name {
        "int8" => DataType::I8,
        "uint8" => DataType::U8,
        "int32" => DataType::I32,
        "uint32" => DataType::U32,
        "int64" => DataType::I64,
        "uint64" => DataType::U64,
        "float16" => DataType::F16,
        "float32" => DataType::F32,
        "float64" => DataType::F64,
        "bfloat16" => DataType::Bf16,
        "float8_e4m3fn" => DataType::F8e4m3,
        "float8_e5m2" => DataType::F8e5m2,
        _ => return None,
    })
}

fn of_kind(kind: char, itemsize: usize) -> (Option<DataType>, String) {
    let word = match kind {
        'i' => "int",
        'u' => "uint",
        'f' => "float",
        'c' => "complex",
        'b' => return (None, "bool".to_owned()),
        _ => return (None, format!("elements of {itemsize} bytes")),
    };
    let name = format!("{word}{}", 8 * itemsize);
    (known(&name), name)
}

/// By the format of the buffer protocol, which is that of `struct`.
fn of_format(format: &str, itemsize: usize) -> (Option<DataType>, String) {
    let foreign = if cfg!(target_endian = "little") { ['>', '!'] } else { ['<', '<'] };
    if format.starts_with(foreign) && itemsize > 1 {
        return (None, format!("{format:?}, of another byte order"));
    }
    let kind = match format.trim_start_matches(['@', '=', '<', '>', '!']) {
        "b" | "h" | "i" | "l" | "q" | "n" => 'i',
        "c" | "B" | "H" | "I" | "L" | "Q" | "N" => 'u',
        "e" | "f" | "d" | "g" => 'f',
        "Zf" | "Zd" | "Zg" => 'c',
        "?" => 'b',
        other => return (None, format!("elements of the form {other:?}")),
    };
    of_kind(kind, itemsize)
}

/// By DLPack's codes.
fn of_dlpack(code: u8, bits: u8, lanes: u16) -> (Option<DataType>, String) {
    let itemsize = usize::from(bits).div_ceil(8);
    let named = |name: &str| (known(name), name.to_owned());
    match (code, bits, lanes) {
        (_, _, 2..) => (None, format!("vectors of {lanes} elements")),
        (0, ..) => of_kind('i', itemsize),
        (1, ..) => of_kind('u', itemsize),
        (2, ..) => of_kind('f', itemsize),
        (4, 16, _) => named("bfloat16"),
        (5, ..) => of_kind('c', itemsize),
        (6, ..) => of_kind('b', itemsize),
        (10, 8, _) => named("float8_e4m3fn"),
        (12, 8, _) => named("float8_e5m2"),
        _ => (None, format!("DLPack's type {code} of {bits} bits")),
    }
}

/// By an array interface's type string, and the name of its type where the string says nothing.
fn of_name(name: Option<&str>, form: &str, itemsize: usize) -> (Option<DataType>, String) {
    if let Some(name) = name.filter(|name| known(name).is_some()) {
        return (known(name), name.to_owned());
    }
    let kind = form.chars().nth(1).unwrap_or('V');
    match (kind, name) {
        ('V', Some(name)) => (None, name.to_owned()),
        _ if form.starts_with('>') && itemsize > 1 => {
            (None, format!("{form:?}, of another byte order"))
        }
        _ => of_kind(kind, itemsize),
    }
}
