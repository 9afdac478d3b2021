//! Why a simulation cannot be.

/// What is wrong, where, and what to do about it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// A fabric and a machine do not make a network.
    #[error("{0}")]
    Network(String),
    /// Nothing leads from one place to another.
    #[error("at {us:.3} µs: no way from {from} to {to}: {why}")]
    NoWay {
        /// When.
        us: f64,
        /// From.
        from: String,
        /// To.
        to: String,
        /// What is missing.
        why: String,
    },
    /// A task names what is not there, or waits for itself.
    #[error("task {task} ({name}): {why}")]
    Task {
        /// Its place in the list.
        task: usize,
        /// Its name.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// A collective cannot be done this way.
    #[error("{0}")]
    Call(String),
    /// A plan does not fit the network, or stands still for ever.
    #[error("{0}")]
    Plan(String),
    /// A fault of something that is not there.
    #[error("fault at {us} µs: {why}")]
    Fault {
        /// When.
        us: f64,
        /// What is wrong.
        why: String,
    },
}
