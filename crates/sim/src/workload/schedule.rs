//! In which order a stage of a pipeline works.

/// One piece of work of a stage.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Work {
    /// A micro-batch forward.
    Forward(u32),
    /// A micro-batch back.
    Backward(u32),
}

/// One forward, one backward: a stage runs ahead by as many micro-batches as there are stages after it, and then takes one back for
/// each one forward. The first stage stands still for as long as the pipeline fills and drains.
#[must_use]
pub fn one_forward_one_backward(stage: u32, stages: u32, microbatches: u32) -> Vec<Work> {
    let ahead = (stages - 1 - stage.min(stages - 1)).min(microbatches);
    let mut order: Vec<Work> = (0..ahead).map(Work::Forward).collect();
    for steady in 0..microbatches - ahead {
        order.push(Work::Forward(ahead + steady));
        order.push(Work::Backward(steady));
    }
    order.extend((microbatches - ahead..microbatches).map(Work::Backward));
    order
}
