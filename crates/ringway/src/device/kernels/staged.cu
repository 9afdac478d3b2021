// Calls that the host makes: blocks copy input to pinned memory, ask, wait, and copy the result out. Where adapters reach
// GPU memory themselves the slots are there, and nobody on the host touches a value: what goes from a rank to itself is copied here.
//
// The Rust side (device/staged/layout.rs) lays out the structures below; both sides must agree to the byte.
// arithmetic.h and memory.h stand in front of this file. Nothing is computed here: the host folds.
//
// A slot of pinned memory has a number of requests, kept in device memory, so that a captured launch can be
// replayed. What the host is to do is written into the slot each time, so that it need remember nothing.
// Every wait looks at the abort word.

#define RW_PIECES 96
#define RW_NOBODY 0xffffffffu

// A slot's words. The first line is the kernel's, the second the host's.
struct rw_slot {
  u64 told[7];         // the call; the last three are of the chunk: factor, values, chunk << 32 | chunks
  u64 request;         // how many requests there were; written last
  u64 reply;           // how many were answered
  u64 unused[7];
};

// In device memory.
struct rw_desk {
  u32 launches;
  u32 ended;           // blocks of the launch at work
  u32 arrived;         // blocks that have copied their part of a batch of messages
  u32 unused;
  u32 numbers[60];     // requests of each slot
};

struct rw_place {
  u64 report, desk;
  u64 slots;           // rw_slot, one after another
  u64 data;            // of slot s: input at 2 s, output at 2 s + 1 times slot_bytes; of messages: where they are
  u64 slot_bytes;
};

struct rw_staged {
  rw_place place;
  u64 input, output;
  u64 factor;          // where this rank's factor is; 0 where told[4] has it
  u64 told[5];
  u64 block_bytes;     // of what belongs to one rank in the buffers, or of all where they are of one piece
  u64 chunk_bytes;     // of that, what goes at once
  u32 input_pieces, output_pieces;
  u32 chunks, slot_count;
  u32 value_bytes;
  u32 own;             // output piece << 16 | input piece of what goes from this rank to itself; RW_NOBODY where the host copies it
};

struct rw_piece {
  u64 address;         // here
  u64 offset;          // in pinned memory
  u64 bytes;
  u32 peer, sends;
};

// What the host reads of a message.
struct rw_part {
  u64 offset, bytes;
  u32 peer, sends;
};

struct rw_messages {
  rw_place place;
  u64 parts;           // rw_part, for the host
  u64 told;
  u64 staging;         // which pinned memory
  u32 pieces;
  u32 unused;
  rw_piece list[RW_PIECES];
};

RW_FN rw_report *rw_place_report(const rw_place &place) { return (rw_report *)place.report; }
RW_FN rw_desk *rw_place_desk(const rw_place &place) { return (rw_desk *)place.desk; }

// Plain loads and stores: the host writes the same places again and again, and a compiler must not take two
// reads with a wait between them for one.
template <int TRIPS>
RW_FN void rw_move_packs(rw_pack *to, const rw_pack *from, u64 at, u64 threads) {
  rw_pack raw[TRIPS];
#pragma unroll
  for (int trip = 0; trip < TRIPS; trip++) raw[trip] = from[at + trip * threads];
#pragma unroll
  for (int trip = 0; trip < TRIPS; trip++) to[at + trip * threads] = raw[trip];
}

// A copy by `threads` threads, of which this is one.
RW_FN void rw_move(u64 target, u64 source, u64 bytes, u64 thread, u64 threads) {
  u8 *to = (u8 *)target;
  const u8 *from = (const u8 *)source;
  u64 differ = target ^ source;
  u64 unit = (differ & 15) == 0 ? 16 : (differ & 3) == 0 ? 4 : 1;
  u64 head = (0 - source) & (unit - 1);
  if (head > bytes) head = bytes;
  u64 units = (bytes - head) / unit, tail = head + units * unit;
  for (u64 at = thread; at < head + (bytes - tail); at += threads) {
    u64 byte = at < head ? at : tail + (at - head);
    to[byte] = from[byte];
  }
  if (unit == 16) {
    const int trips = 8;
    rw_pack *packs = (rw_pack *)(to + head);
    const rw_pack *sources = (const rw_pack *)(from + head);
    u64 at = thread;
    for (; at + (trips - 1) * threads < units; at += threads * trips) rw_move_packs<trips>(packs, sources, at, threads);
    for (; at < units; at += threads) rw_move_packs<1>(packs, sources, at, threads);
  } else if (unit == 4) {
    for (u64 at = thread; at < units; at += threads) ((u32 *)(to + head))[at] = ((const u32 *)(from + head))[at];
  } else {
    for (u64 at = thread; at < units; at += threads) to[head + at] = from[head + at];
  }
}

// Pieces that lie `from_step` apart to where they lie `to_step` apart. Small ones are shared out among groups
// of threads, so that none waits for the other.
RW_FN void rw_move_pieces(u64 to, u64 to_step, u64 from, u64 from_step, u64 bytes, u32 pieces) {
  u32 lanes = blockDim.x;
  if (bytes < 4096 && lanes > 32) lanes = 32;
  u32 groups = blockDim.x / lanes, group = threadIdx.x / lanes;
  if (group >= groups) return;
  for (u32 piece = group; piece < pieces; piece += groups)
    rw_move(to + piece * to_step, from + piece * from_step, bytes, threadIdx.x % lanes, lanes);
}

RW_FN void rw_begin(const rw_place &place) {
  if (threadIdx.x != 0 || blockIdx.x != 0) return;
  rw_desk *desk = rw_place_desk(place);
  u32 launches = rw_load_relaxed(&desk->launches) + 1;
  rw_store_relaxed(&desk->launches, launches);
  rw_store_relaxed(&rw_place_report(place)->begun, launches);
}

// The last block says that the launch is over.
RW_FN void rw_end(const rw_place &place) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  rw_desk *desk = rw_place_desk(place);
  __threadfence_system();
  if (atomicAdd(&desk->ended, 1u) + 1 != gridDim.x) return;
  __threadfence_system();
  rw_store_relaxed(&desk->ended, 0u);
  rw_store_relaxed(&rw_place_report(place)->done, rw_load_relaxed(&desk->launches));
}

// Waits for the answer to request `number`; false when the launch is given up. Both words are in the host's
// memory, a microsecond away: the abort word is looked at now and then.
RW_FN bool rw_answered(const rw_place &place, const rw_slot *slot, u32 number) {
  for (u32 spins = 0;; spins++) {
    if ((int)((u32)rw_load_acquire(&slot->reply) - number) >= 0) return true;
    RW_PAUSE(spins);
    if ((spins & 63) == 63 && rw_load_relaxed(&rw_place_report(place)->abort) != 0) return false;
  }
}

// The bits of a value of so many bytes.
RW_FN u64 rw_value_bits(u64 address, u32 bytes) {
  u64 bits = 0;
  for (u32 i = 0; i < bytes && i < 8; i++) bits |= (u64)((const u8 *)address)[i] << (8 * i);
  return bits;
}

RW_KERNEL(ringway_staged, rw_staged) {
  RW_SHARED u32 dead;
  const rw_place &place = launch.place;
  rw_begin(place);
  if (threadIdx.x == 0) dead = 0;
  // There are as many blocks as chunks or slots, or so many that slots can be shared out among them evenly: none is another's.
  for (u32 chunk = blockIdx.x; chunk < launch.chunks; chunk += gridDim.x) {
    u32 index = chunk % launch.slot_count;
    rw_slot *slot = (rw_slot *)place.slots + index;
    u64 in = place.data + (u64)index * 2 * place.slot_bytes, out = in + place.slot_bytes;
    u64 offset = chunk * launch.chunk_bytes;
    u64 bytes = launch.block_bytes - offset < launch.chunk_bytes ? launch.block_bytes - offset : launch.chunk_bytes;
    rw_move_pieces(in, bytes, launch.input + offset, launch.block_bytes, bytes, launch.input_pieces);
    // All have copied the last result out.
    __syncthreads();
    if (launch.own != RW_NOBODY) {
      u64 from = launch.input + (launch.own & 0xffff) * launch.block_bytes + offset;
      rw_move(out + (launch.own >> 16) * bytes, from, bytes, threadIdx.x, blockDim.x);
      __syncthreads();
    }
    if (threadIdx.x == 0) {
      u32 number = ++rw_place_desk(place)->numbers[index];
      for (u32 i = 0; i < 5; i++) rw_store_relaxed(&slot->told[i], launch.told[i]);
      if (launch.factor != 0) rw_store_relaxed(&slot->told[4], rw_value_bits(launch.factor, launch.value_bytes));
      rw_store_relaxed(&slot->told[5], bytes / launch.value_bytes);
      rw_store_relaxed(&slot->told[6], (u64)chunk << 32 | launch.chunks);
      // What all threads of the block wrote comes before the request.
      __threadfence_system();
      rw_store_release(&slot->request, (u64)number);
      if (!rw_answered(place, slot, number)) dead = 1;
    }
    __syncthreads();
    if (dead) break;
    rw_move_pieces(launch.output + offset, launch.block_bytes, out, bytes, bytes, launch.output_pieces);
  }
  rw_end(place);
}

RW_KERNEL(ringway_messages, rw_messages) {
  RW_SHARED u32 dead;
  const rw_place &place = launch.place;
  rw_begin(place);
  rw_desk *desk = rw_place_desk(place);
  rw_slot *slot = (rw_slot *)place.slots;
  u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x, threads = (u64)gridDim.x * blockDim.x;
  u32 number = 0;
  if (threadIdx.x == 0) {
    dead = 0;
    number = rw_load_relaxed(&desk->numbers[0]) + 1;
  }
  for (u32 i = 0; i < launch.pieces; i++) {
    const rw_piece &piece = launch.list[i];
    if (piece.sends) rw_move(place.data + piece.offset, piece.address, piece.bytes, thread, threads);
  }
  if (blockIdx.x == 0) {
    rw_part *parts = (rw_part *)launch.parts;
    for (u32 i = threadIdx.x; i < launch.pieces; i += blockDim.x) {
      const rw_piece &piece = launch.list[i];
      rw_part part = {piece.offset, piece.bytes, piece.peer, piece.sends};
      parts[i] = part;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    // What all blocks wrote comes before the request, which the last of them makes.
    __threadfence_system();
    if (atomicAdd(&desk->arrived, 1u) + 1 == gridDim.x) {
      __threadfence_system();
      rw_store_relaxed(&desk->arrived, 0u);
      rw_store_relaxed(&desk->numbers[0], number);
      rw_store_relaxed(&slot->told[0], launch.told);
      rw_store_relaxed(&slot->told[1], launch.staging);
      rw_store_relaxed(&slot->told[5], (u64)launch.pieces);
      rw_store_relaxed(&slot->told[6], (u64)1);
      __threadfence_system();
      rw_store_release(&slot->request, (u64)number);
    }
    if (!rw_answered(place, slot, number)) dead = 1;
  }
  __syncthreads();
  if (!dead) {
    for (u32 i = 0; i < launch.pieces; i++) {
      const rw_piece &piece = launch.list[i];
      if (!piece.sends) rw_move(piece.address, place.data + piece.offset, piece.bytes, thread, threads);
    }
  }
  rw_end(place);
}
