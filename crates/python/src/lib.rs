//! The native module of the Python package `ringway`: translation between Python and the library, nothing else.
//!
//! *Invariants*: nothing waits while it holds Python's lock; no panic gets to Python but as an exception; what a call needs
//! of Python's is held until the call is over.

mod arguments;
mod buffer;
mod command;
mod communicator;
mod error;
mod waiting;
mod work;

use pyo3::prelude::*;

/// The native module.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::buffer::Buffer;
    #[pymodule_export]
    use super::command::command;
    #[pymodule_export]
    use super::communicator::{Communicator, close_all, hand_over, unique_id};
    #[pymodule_export]
    use super::work::Work;

    #[pymodule_init]
    fn init(module: &super::Bound<'_, super::PyModule>) -> super::PyResult<()> {
        use super::{PyAnyMethods as _, PyModuleMethods as _};
        module.add("version", env!("CARGO_PKG_VERSION"))?;
        // The others see a rank that ends without a goodbye as dead.
        let at_exit = module.py().import("atexit")?;
        at_exit.call_method1("register", (module.getattr("_close_all")?,))?;
        Ok(())
    }
}
