//! The edge between Rust and C: no panic crosses it, every error leaves a code, a line in the log
//! and the text that `ncclGetLastError` gives.

use std::any::Any;
use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU8, Ordering};

use ringway::{Error, Result};

use crate::types::Code;

/// Bytes of the last error's text, with the zero at its end.
const TEXT_BYTES: usize = 1024;

/// The last error of the process. Bytes are atomics since a program may read them while another
/// thread writes; it then sees a mixture, but always a zero at the end.
static LAST: [AtomicU8; TEXT_BYTES] = [const { AtomicU8::new(0) }; TEXT_BYTES];

/// Writers take turns.
static WRITING: Mutex<()> = Mutex::new(());

/// Runs the body of an exported function.
pub(crate) fn guard(name: &str, body: impl FnOnce() -> Result<Code>) -> c_int {
    let outcome = contain(name, body);
    let code = outcome.unwrap_or_else(|error| {
        report(&error);
        Code::from(&error)
    });
    code as c_int
}

/// Runs `body`; a panic becomes an error.
pub(crate) fn contain<T>(name: &str, body: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        Err(Error::internal(format!("{name} panicked, which is a bug: {}", words(&*panic))))
    })
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// Writes an error to the log and where `ncclGetLastError` reads.
pub(crate) fn report(error: &Error) {
    tracing::warn!(target: "ringway", "{error}");
    remember(&error.to_string());
}

fn remember(text: &str) {
    let _turn = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    let text = &text[..text.floor_char_boundary(TEXT_BYTES - 1)];
    for (place, byte) in LAST.iter().zip(text.bytes().filter(|byte| *byte != 0).chain([0])) {
        place.store(byte, Ordering::Relaxed);
    }
}

/// The text of the last error: a C string that is there as long as the library.
pub(crate) fn last_error() -> *const c_char {
    LAST.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> String {
        let bytes: Vec<u8> = LAST.iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
        String::from_utf8(bytes.split(|byte| *byte == 0).next().unwrap().to_vec()).unwrap()
    }

    #[test]
    fn panics_and_errors_become_codes_and_texts() {
        let code = guard("ncclTest", || panic!("on {}", "purpose"));
        assert_eq!(code, Code::InternalError as c_int);
        assert!(last().contains("ncclTest panicked") && last().contains("on purpose"));
        let code = guard("ncclTest", || Err(Error::argument("x".repeat(5000))));
        assert_eq!(code, Code::InvalidArgument as c_int);
        assert_eq!(last(), "x".repeat(TEXT_BYTES - 1));
        assert_eq!(guard("ncclTest", || Ok(Code::InProgress)), 7);
        let _short = guard("ncclTest", || Err(Error::usage("short")));
        assert_eq!(last(), "short");
    }
}
