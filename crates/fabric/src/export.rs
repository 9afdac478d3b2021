//! A fabric for others: schedulers, other tools, people.

pub mod dot;
pub mod ibnetdiscover;
pub mod json;
pub mod kubernetes;
pub mod picture;
pub mod slurm;
#[cfg(test)]
mod tests;
