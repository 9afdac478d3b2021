//! Communicators come and go.

use std::ffi::c_int;

use ringway::Error;

use super::exports;
use crate::comm::{Comm, Token};
use crate::create::{self, OutComm};
use crate::end;
use crate::group;
use crate::raw::{In, Out, Versioned};
use crate::types::{Code, UniqueIdBytes};

exports! {
    fn ncclGetUniqueId / pncclGetUniqueId(id: Out<UniqueIdBytes>) {
        id.check("uniqueId")?;
        id.put("uniqueId", create::unique_id()?)?;
        Ok(Code::Success)
    }

    fn ncclCommInitRank / pncclCommInitRank(
        comm: OutComm,
        ranks: c_int,
        id: UniqueIdBytes,
        rank: c_int,
    ) {
        group::scope(|| create::init(comm, (ranks, rank), &id, None))
    }

    fn ncclCommInitRankConfig / pncclCommInitRankConfig(
        comm: OutComm,
        ranks: c_int,
        id: UniqueIdBytes,
        rank: c_int,
        config: Versioned,
    ) {
        group::scope(|| create::init(comm, (ranks, rank), &id, Some(config)))
    }

    /// All ids name one meeting, that of the first: the ranks need no more than one.
    fn ncclCommInitRankScalable / pncclCommInitRankScalable(
        comm: OutComm,
        ranks: c_int,
        rank: c_int,
        count: c_int,
        ids: In<UniqueIdBytes>,
        config: Versioned,
    ) {
        group::scope(|| {
            if count < 1 || count > ranks {
                return Err(Error::argument(format!("nId is {count}; it is 1 to nranks")));
            }
            let first = ids.read().ok_or_else(|| Error::argument("commIds is NULL"))?;
            create::init(comm, (ranks, rank), &first, Some(config))
        })
    }

    fn ncclCommInitAll / pncclCommInitAll(
        comms: OutComm,
        count: c_int,
        devices: In<c_int>,
    ) {
        group::scope(|| {
            let many = usize::try_from(count).unwrap_or_default();
            let list = (!devices.is_null()).then(|| devices.read_many("devlist", many));
            create::init_all(comms, count, list.transpose()?)
        })
    }

    fn ncclCommSplit / pncclCommSplit(
        comm: *const Token,
        color: c_int,
        key: c_int,
        new: OutComm,
        config: Versioned,
    ) {
        group::scope(|| create::split(&Comm::find(comm)?, (color, key), new, config))
    }

    fn ncclCommShrink / pncclCommShrink(
        comm: *const Token,
        excluded: In<c_int>,
        count: c_int,
        new: OutComm,
        config: Versioned,
        flags: c_int,
    ) {
        group::scope(|| {
            let comm = Comm::find(comm)?;
            let many = usize::try_from(count)
                .map_err(|_| Error::argument(format!("excludeRanksCount is {count}")))?;
            let excluded = excluded.read_many("excludeRanksList", many)?;
            create::shrink(&comm, &excluded, new, (config, flags))
        })
    }

    fn ncclCommGetUniqueId / pncclCommGetUniqueId(comm: *const Token, id: Out<UniqueIdBytes>) {
        id.check("uniqueId")?;
        id.put("uniqueId", create::growth_id(&Comm::find(comm)?)?)?;
        Ok(Code::Success)
    }

    /// Without a communicator it is a new rank that comes, with its number and the id.
    fn ncclCommGrow / pncclCommGrow(
        comm: *const Token,
        ranks: c_int,
        id: In<UniqueIdBytes>,
        rank: c_int,
        new: OutComm,
        config: Versioned,
    ) {
        group::scope(|| {
            if !comm.is_null() {
                return create::grow(&Comm::find(comm)?, ranks, id.read(), new, config);
            }
            let id = id.read().ok_or_else(|| {
                Error::argument("a new rank needs uniqueId, that of ncclCommGetUniqueId")
            })?;
            create::init(new, (ranks, rank), &id, Some(config))
        })
    }

    fn ncclCommFinalize / pncclCommFinalize(comm: *const Token) {
        group::scope(|| end::finalize(comm))
    }

    fn ncclCommDestroy / pncclCommDestroy(comm: *const Token) {
        group::scope(|| end::destroy(comm))
    }

    fn ncclCommAbort / pncclCommAbort(comm: *const Token) {
        end::abort(comm)?;
        Ok(Code::Success)
    }

    fn ncclCommRevoke / pncclCommRevoke(comm: *const Token, flags: c_int) {
        if comm.is_null() {
            return Ok(Code::Success);
        }
        let comm = Comm::find(comm)?;
        end::revoke(&comm, flags)?;
        Ok(comm.async_error())
    }
}
