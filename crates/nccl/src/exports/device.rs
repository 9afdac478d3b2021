//! What this library does not do. Programs are linked against these names, so they are here; each
//! says that it is not supported.

use std::ffi::{c_int, c_uint, c_void};

use ringway::Error;

use super::{exports, exports_plain};
use crate::boundary::report;
use crate::comm::{Comm, Token};
use crate::group;
use crate::types::Team;

fn unsupported(name: &str) -> Error {
    Error::usage(format!("{name} is not supported by this library"))
}

type Pointer = *const c_void;

/// Refuses functions that return a code.
macro_rules! refused {
    ($($name:ident / $twin:ident ( $($argument:ident : $type:ty),* );)*) => {
        exports! {$(
            fn $name / $twin($($argument: $type),*) {
                let _not_looked_at = ($($argument,)*);
                Err(unsupported(stringify!($name)))
            }
        )*}
    };
}

/// Refuses operations: what a group collects. A program may look at what `ncclGroupEnd` returns alone.
macro_rules! refused_in_groups {
    ($($name:ident / $twin:ident ( $($argument:ident : $type:ty),* );)*) => {
        exports! {$(
            fn $name / $twin($($argument: $type),*) {
                let _not_looked_at = ($($argument,)*);
                group::scope(|| Err(unsupported(stringify!($name))))
            }
        )*}
    };
}

refused_in_groups! {
    ncclPutSignal / pncclPutSignal(
        buffer: Pointer, count: usize, kind: c_int, peer: c_int, window: Pointer, offset: usize,
        signal: c_int, context: c_int, flags: c_uint, comm: *const Token, stream: Pointer
    );
    ncclSignal / pncclSignal(
        peer: c_int, signal: c_int, context: c_int, flags: c_uint, comm: *const Token, stream: Pointer
    );
    ncclWaitSignal / pncclWaitSignal(
        count: c_int, descriptions: Pointer, comm: *const Token, stream: Pointer
    );
}

refused! {
    ncclCommSuspend / pncclCommSuspend(comm: *const Token, flags: c_int);
    ncclCommResume / pncclCommResume(comm: *const Token);
    ncclSetEncryption / pncclSetEncryption(config: Pointer);
    ncclCommQueryProperties / pncclCommQueryProperties(comm: *const Token, properties: Pointer);
    ncclDevCommCreate / pncclDevCommCreate(
        comm: *const Token, requirements: Pointer, out: Pointer
    );
    ncclDevCommDestroy / pncclDevCommDestroy(comm: *const Token, device: Pointer);
    ncclGetLsaDevicePointer / pncclGetLsaDevicePointer(
        window: Pointer, offset: usize, rank: c_int, out: Pointer
    );
    ncclGetLsaMultimemDevicePointer / pncclGetLsaMultimemDevicePointer(
        window: Pointer, offset: usize, out: Pointer
    );
    ncclGetPeerDevicePointer / pncclGetPeerDevicePointer(
        window: Pointer, offset: usize, peer: c_int, out: Pointer
    );
}

/// Functions of which nothing is looked at, not even the arguments: in C's calling conventions here
/// the caller alone minds those.
macro_rules! refused_unseen {
    ($($name:ident / $twin:ident;)*) => { refused! {$( $name / $twin(); )*} };
}

refused_unseen! {
    ncclGetMultimemDevicePointer / pncclGetMultimemDevicePointer;
    ncclLsaBarrierCreateRequirement / pncclLsaBarrierCreateRequirement;
    ncclGinBarrierCreateRequirement / pncclGinBarrierCreateRequirement;
    ncclLLA2ACreateRequirement / pncclLLA2ACreateRequirement;
    ncclGinOutboxCreateRequirement / pncclGinOutboxCreateRequirement;
    ncclGinInboxA2ACreateRequirement / pncclGinInboxA2ACreateRequirement;
    ncclGetCftDeviceLeInfo / pncclGetCftDeviceLeInfo;
    ncclGetMultimemDeviceLeInfo / pncclGetMultimemDeviceLeInfo;
    ncclGetPeerDeviceLeInfo / pncclGetPeerDeviceLeInfo;
}

/// No ranks: what functions that cannot return a code say, with a line in the log.
const NOBODY: Team = Team { ranks: 0, rank: 0, stride: 0 };

fn nobody(name: &str) -> Team {
    report(&unsupported(name));
    NOBODY
}

fn no_rank(name: &str) -> c_int {
    report(&unsupported(name));
    -1
}

/// All ranks; nobody where the handle is wrong.
fn world(comm: *const Token) -> Team {
    let number = |value: u32| c_int::try_from(value).unwrap_or(c_int::MAX);
    match Comm::find(comm) {
        Ok(comm) => Team { ranks: number(comm.size), rank: number(comm.rank), stride: 1 },
        Err(error) => {
            report(&error);
            NOBODY
        }
    }
}

exports_plain! {
    fn ncclTeamWorld / pncclTeamWorld(comm: *const Token) -> Team, or NOBODY => world(comm);
    fn ncclTeamLsa / pncclTeamLsa(_comm: *const Token) -> Team, or NOBODY => nobody("ncclTeamLsa");
    fn ncclTeamRail / pncclTeamRail(_comm: *const Token) -> Team, or NOBODY => nobody("ncclTeamRail");
    fn ncclTeamCft / pncclTeamCft(_comm: *const Token) -> Team, or NOBODY => nobody("ncclTeamCft");
    fn ncclTeamCftMultimem / pncclTeamCftMultimem(_comm: *const Token) -> Team, or NOBODY
        => nobody("ncclTeamCftMultimem");
    fn ncclTeamRankToWorld / pncclTeamRankToWorld(_comm: *const Token, _team: Team, _rank: c_int)
        -> c_int, or -1 => no_rank("ncclTeamRankToWorld");
    fn ncclTeamRankToLsa / pncclTeamRankToLsa(_comm: *const Token, _team: Team, _rank: c_int)
        -> c_int, or -1 => no_rank("ncclTeamRankToLsa");
    fn ncclLLA2ACalcSlots / pncclLLA2ACalcSlots(_count: c_int, _bytes: c_int)
        -> c_int, or -1 => no_rank("ncclLLA2ACalcSlots");
}
