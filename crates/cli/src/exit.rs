//! The code a command ends with. The standard library's cannot be read, and a caller that is no `main` has to.

/// See the module's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExitCode(u8);

impl ExitCode {
    /// All is well.
    pub(crate) const SUCCESS: Self = Self(0);
    /// It is not.
    pub(crate) const FAILURE: Self = Self(1);
}

impl From<u8> for ExitCode {
    fn from(code: u8) -> Self {
        Self(code)
    }
}

impl From<ExitCode> for u8 {
    fn from(code: ExitCode) -> Self {
        code.0
    }
}
