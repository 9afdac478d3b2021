//! What came out of a simulation.

use serde::Serialize;

use crate::network::LinkId;

/// What a link did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkUse {
    /// Which.
    pub link: LinkId,
    /// Bytes that it carried.
    pub bytes: f64,
    /// Microseconds in which it carried anything.
    pub busy_us: f64,
    /// Microseconds in which it carried all it can, so that others waited, or was held up by pauses.
    pub full_us: f64,
}

/// Something that began and ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Span {
    /// What people see.
    pub name: String,
    /// The row of a timeline it is in.
    pub row: String,
    /// When it began.
    pub start_us: f64,
    /// When it ended.
    pub end_us: f64,
}

/// Something that happened to the network.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Incident {
    /// When.
    pub us: f64,
    /// What: `leaf-1 port 33 - spine-2 port 1 went down; 14 flows took another way`.
    pub what: String,
}

/// What came out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// When all was over.
    pub end_us: f64,
    /// The links that carried something, by place.
    pub links: Vec<LinkUse>,
    /// Tasks, in the order of their beginning.
    pub spans: Vec<Span>,
    /// What happened to the network.
    pub incidents: Vec<Incident>,
    /// Flows that were simulated.
    pub flows: u64,
    /// How often rates were shared out anew.
    pub solves: u64,
}
