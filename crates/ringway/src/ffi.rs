//! Libraries of vendors, opened when they are there.
//!
//! *Invariant:* nothing here is needed to build or start. A library or a symbol that is missing is a
//! typed error, and a function pointer never outlives the library it comes from.

#![allow(unsafe_code, reason = "opening a library runs its constructors; symbols are untyped")]

use std::error::Error as _;

use libloading::Library;

pub(crate) mod cuda;
pub(crate) mod nvml;
pub(crate) mod nvrtc;
pub(crate) mod verbs;

/// Why a library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum FfiError {
    /// None of its names can be opened.
    #[error("{library} is not on this machine ({why})")]
    NoLibrary { library: &'static str, why: String },
    /// It is too old for what is asked.
    #[error("{library} has no {symbol}; its driver is too old")]
    NoSymbol { library: &'static str, symbol: &'static str },
    /// A call failed.
    #[error("{call} failed with code {code}")]
    Call { call: &'static str, code: i32 },
}

/// Opens the first of some names that can be opened.
pub(crate) fn open(library: &'static str, names: &[&str]) -> Result<Library, FfiError> {
    let mut why = String::new();
    for name in names {
        // SAFETY: these are vendors' libraries, named by us and found on the system's own search
        // path; their constructors are what every program that links to them runs at its start.
        match unsafe { Library::new(*name) } {
            Ok(opened) => return Ok(opened),
            // What the loader says of the file is in the cause.
            Err(error) => {
                why = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            }
        }
    }
    Err(FfiError::NoLibrary { library, why })
}

/// A function of a library, copied out.
///
/// # Safety
/// `F` is the type of the function of that name, and the pointer is not used after the library is
/// closed.
pub(crate) unsafe fn function<F: Copy>(
    opened: &Library,
    library: &'static str,
    symbol: &'static str,
) -> Result<F, FfiError> {
    // SAFETY: the caller vouches for the type.
    let found = unsafe { opened.get::<F>(symbol.as_bytes()) };
    found.map(|found| *found).map_err(|_| FfiError::NoSymbol { library, symbol })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_an_error_with_its_name() {
        let error = open("no library", &["libringway-has-no-such.so.9"]).unwrap_err();
        assert!(matches!(&error, FfiError::NoLibrary { library: "no library", .. }), "{error}");
        assert!(error.to_string().contains("libringway-has-no-such.so.9"), "{error}");
    }

    #[test]
    fn a_missing_symbol_is_an_error_with_its_name() {
        let opened = open("libc", &["libc.so.6"]).unwrap();
        // SAFETY: the symbol does not exist, so nothing has that type.
        let found = unsafe { function::<extern "C" fn()>(&opened, "libc", "ringway_has_no_such") };
        let error = found.unwrap_err();
        assert_eq!(error.to_string(), "libc has no ringway_has_no_such; its driver is too old");
    }
}
