//! Collectives and messages.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use ringway::{Collective, Error, Result};

use super::exports;
use crate::comm::{Comm, Token};
use crate::group;
use crate::operation::{Arguments, Operation};
use crate::operator::{self, Factor};
use crate::raw::{In, Out};
use crate::types::{Code, data_type};

type Buffer = *const c_void;
type Stream = *const c_void;

/// Adds a collective to the group, or runs it.
fn collect(comm: *const Token, given: Arguments, config: *const c_void) -> Result<Code> {
    group::scope(|| {
        plain(config)?;
        let comm = Comm::find(comm)?;
        comm.check_callable()?;
        let operation = Operation::collective(&comm, given)?;
        group::add(comm, operation);
        Ok(())
    })
}

fn arguments(
    collective: Collective,
    (input, output): (Buffer, Buffer),
    (count, data_type): (usize, c_int),
    stream: Stream,
) -> Arguments {
    Arguments {
        collective,
        input: input.expose_provenance(),
        output: output.expose_provenance(),
        count,
        data_type,
        op: None,
        root: None,
        stream: stream.addr(),
    }
}

/// Adds a message to the group, or runs it.
fn message(
    comm: *const Token,
    (buffer, count): (Buffer, usize),
    data_type: c_int,
    to_or_from: (c_int, bool),
    stream: Stream,
) -> Result<Code> {
    group::scope(|| {
        let comm = Comm::find(comm)?;
        comm.check_callable()?;
        let buffer = (buffer.expose_provenance(), count);
        let operation = Operation::message(&comm, buffer, data_type, to_or_from, stream.addr())?;
        group::add(comm, operation);
        Ok(())
    })
}

/// A message to or from every rank.
fn messages(
    comm: &Comm,
    (buffer, sends): (Buffer, bool),
    (counts, places, ranks): (In<usize>, In<usize>, usize),
    kind: c_int,
    stream: usize,
) -> Result<Vec<Operation>> {
    let size = data_type(kind)?.size();
    let names = if sends { ["sendcounts", "sdispls"] } else { ["recvcounts", "rdispls"] };
    let counts = counts.read_many(names[0], ranks)?;
    let places = places.read_many(names[1], ranks)?;
    let address = buffer.expose_provenance();
    (0..)
        .zip(counts.into_iter().zip(places))
        .map(|(peer, (count, place))| {
            let at = place.checked_mul(size).and_then(|bytes| address.checked_add(bytes));
            let at = at.filter(|_| address != 0 || count == 0).ok_or_else(|| {
                let name = if sends { "sendbuff" } else { "recvbuff" };
                Error::argument(format!("{name} of all_to_all_v is NULL, or {place} is beyond it"))
            })?;
            Operation::message(comm, (at, count), kind, (peer, sends), stream)
        })
        .collect()
}

/// The `Config` forms: without a configuration they are the plain calls.
fn plain(config: *const c_void) -> Result<()> {
    if config.is_null() {
        return Ok(());
    }
    Err(Error::usage("ncclCollConfig_t is not supported: pass NULL, or use the plain call"))
}

macro_rules! collectives {
    ($(
        $collective:ident $name:ident / $twin:ident $config:ident / $config_twin:ident
            ( $($extra:ident),* );
    )*) => {$(
        exports! {
            fn $name / $twin(
                send: Buffer, recv: Buffer, count: usize, kind: c_int, $($extra: c_int,)*
                comm: *const Token, stream: Stream,
            ) {
                let given = arguments(Collective::$collective, (send, recv), (count, kind), stream);
                collect(comm, Arguments { $($extra: Some($extra),)* ..given }, std::ptr::null())
            }

            fn $config / $config_twin(
                send: Buffer, recv: Buffer, count: usize, kind: c_int, $($extra: c_int,)*
                comm: *const Token, stream: Stream, config: *const c_void,
            ) {
                let given = arguments(Collective::$collective, (send, recv), (count, kind), stream);
                collect(comm, Arguments { $($extra: Some($extra),)* ..given }, config)
            }
        }
    )*};
}

collectives! {
    AllReduce ncclAllReduce / pncclAllReduce ncclAllReduceConfig / pncclAllReduceConfig (op);
    Reduce ncclReduce / pncclReduce ncclReduceConfig / pncclReduceConfig (op, root);
    ReduceScatter ncclReduceScatter / pncclReduceScatter
        ncclReduceScatterConfig / pncclReduceScatterConfig (op);
    Broadcast ncclBroadcast / pncclBroadcast ncclBroadcastConfig / pncclBroadcastConfig (root);
    AllGather ncclAllGather / pncclAllGather ncclAllGatherConfig / pncclAllGatherConfig ();
    AllToAll ncclAlltoAll / pncclAlltoAll ncclAlltoAllConfig / pncclAlltoAllConfig ();
    Gather ncclGather / pncclGather ncclGatherConfig / pncclGatherConfig (root);
    Scatter ncclScatter / pncclScatter ncclScatterConfig / pncclScatterConfig (root);
}

exports! {
    /// Broadcast in place.
    fn ncclBcast / pncclBcast(
        buffer: Buffer, count: usize, kind: c_int, root: c_int, comm: *const Token, stream: Stream,
    ) {
        let given = arguments(Collective::Broadcast, (buffer, buffer), (count, kind), stream);
        collect(comm, Arguments { root: Some(root), ..given }, std::ptr::null())
    }

    fn ncclSend / pncclSend(
        buffer: Buffer, count: usize, kind: c_int, peer: c_int, comm: *const Token, stream: Stream,
    ) {
        message(comm, (buffer, count), kind, (peer, true), stream)
    }

    fn ncclRecv / pncclRecv(
        buffer: Buffer, count: usize, kind: c_int, peer: c_int, comm: *const Token, stream: Stream,
    ) {
        message(comm, (buffer, count), kind, (peer, false), stream)
    }

    /// RCCL's name.
    fn ncclAllToAll / pncclAllToAll(
        send: Buffer, recv: Buffer, count: usize, kind: c_int, comm: *const Token, stream: Stream,
    ) {
        let given = arguments(Collective::AllToAll, (send, recv), (count, kind), stream);
        collect(comm, given, std::ptr::null())
    }

    /// RCCL's: counts and places for each rank.
    fn ncclAllToAllv / pncclAllToAllv(
        send: Buffer, send_counts: In<usize>, send_places: In<usize>,
        recv: Buffer, recv_counts: In<usize>, recv_places: In<usize>,
        kind: c_int, comm: *const Token, stream: Stream,
    ) {
        group::scope(|| {
            let comm = Comm::find(comm)?;
            comm.check_callable()?;
            let stream = stream.addr();
            for (buffer, counts, places, sends) in [
                (send, send_counts, send_places, true),
                (recv, recv_counts, recv_places, false),
            ] {
                let parts = (counts, places, comm.size as usize);
                for part in messages(&comm, (buffer, sends), parts, kind, stream)? {
                    group::add(Arc::clone(&comm), part);
                }
            }
            Ok(())
        })
    }

    fn ncclRedOpCreatePreMulSum / pncclRedOpCreatePreMulSum(
        op: Out<c_int>, scalar: In<u8>, kind: c_int, residence: c_int, comm: *const Token,
    ) {
        op.check("op")?;
        let comm = Comm::find(comm)?;
        let data_type = data_type(kind)?;
        if scalar.is_null() {
            return Err(Error::argument("scalar is NULL"));
        }
        let factor = match residence {
            0 => Factor::At { scalar, data_type },
            1 => Factor::Given(operator::read(scalar, data_type)?),
            other => {
                return Err(Error::argument(format!(
                    "residence is {other}; it is ncclScalarDevice (0) or ncclScalarHostImmediate (1)"
                )));
            }
        };
        let mut operators = comm.operators.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        op.put("op", operators.make(data_type, factor)?)?;
        Ok(Code::Success)
    }

    fn ncclRedOpDestroy / pncclRedOpDestroy(op: c_int, comm: *const Token) {
        let comm = Comm::find(comm)?;
        let mut operators = comm.operators.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        operators.destroy(op)?;
        Ok(Code::Success)
    }
}
