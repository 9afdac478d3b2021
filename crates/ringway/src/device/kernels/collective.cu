// One launch: the program of a rank's part of one or several calls, run by every block.
//
// The Rust side (device/program.rs) writes the program and lays out the structures below; both sides must
// agree to the byte. arithmetic.h and memory.h stand in front of this file. The work of a launch has as many parts on all
// ranks: part p has its share of each step, and its signals meet those of part p of other ranks. A block does one part, or,
// where the GPU has no place for so many blocks, several: each step for all of them before the next step, so that steps come
// in one order however many blocks there are and whatever else is in the launch.
//
// Memory that other ranks write is read with acquire or volatile loads only, and every wait looks at the
// abort word, so that a launch ends when its communicator does.

enum { RW_SIGNAL = 1, RW_WAIT = 2, RW_FOLD = 3, RW_SHOW = 4 };
enum { RW_INPUT = 0, RW_OUTPUT = 1, RW_PEER_INPUT = 2, RW_PEER_OUTPUT = 3, RW_CARD = 4 };

#define RW_FLAGS 4
// Most places that one step names.
#define RW_PLACES 72
// Bytes of a launch's argument. The longer it is, the longer the host takes to launch.
#define RW_ROOM 1536
#define RW_ENTRIES 4096
#define RW_ENTRY_WORDS 10
// Whether ranks have factors, which go with their buffers.
#ifdef RW_OP
#define RW_SCALED RW_IS(5)
#else
#define RW_SCALED false
#endif

// Where values are: bytes from the start of a buffer.
struct rw_span {
  u64 offset : 48, region : 8, rank : 8;
};

struct rw_op {
  u64 amount;     // peers, a bit each (signal, wait); values (fold, show)
  u16 parts;      // parts of the launch that have a share of it
  u8 code;
  u8 flag;
  u8 call;
  u8 first;       // first span: sources, then targets
  u8 sources;
  u8 targets;
};

struct rw_call {
  u64 input, output;    // addresses here
  u64 input_token, output_token;  // for ranks of other processes: entry << 40 | offset
  u64 scalar;           // factor of a premultiplied sum, or where it is
  u32 tag;
  u32 scalar_is_address;
};

// One end of a signal, written by the peer.
struct rw_record {
  u64 word;    // tag << 32 | count
  u64 input, output;    // check << 56 | address or token
  u64 scalar;
};

// The argument of a launch.
struct rw_launch {
  u64 station;         // this rank's own
  u64 report;
  u64 state, cards, maps;      // offsets in a station
  u64 card_bytes;      // of one rank's packets of one slot, of all parts
  u64 foreign;         // ranks of other processes, a bit each
  u64 near;            // ranks on the same GPU, a bit each
  u64 book;            // what this rank names to other processes, in pinned memory
  u32 rank, ranks;
  u32 parts_most;      // of any launch: stations are laid out for so many
  u32 ops;
  u32 named, names;    // entries that the station may not have yet: from, and up to
  u32 op;              // the operation, where the kernel is for all
  u16 steps, places;   // where they begin in what follows
  // One behind the other: the stations of all ranks, calls, steps, and the places that they name.
  u64 rest[(RW_ROOM - 104) / 8];
};
static_assert(sizeof(rw_span) == 8 && sizeof(rw_op) == 16 && sizeof(rw_call) == 48, "as the host has them");
static_assert(sizeof(rw_launch) == RW_ROOM && RW_ROOM % 16 == 0, "it is copied by 16 bytes");

RW_FN u64 rw_station_of(const rw_launch &launch, u32 rank) { return launch.rest[rank]; }
RW_FN const rw_call &rw_call_at(const rw_launch &launch, u32 call) { return ((const rw_call *)(launch.rest + launch.ranks))[call]; }
RW_FN const rw_op &rw_op_at(const rw_launch &launch, u32 step) { return ((const rw_op *)(launch.rest + launch.steps))[step]; }
RW_FN const rw_span &rw_span_at(const rw_launch &launch, u32 place) { return ((const rw_span *)(launch.rest + launch.places))[place]; }

// What a part remembers of a peer from one launch to the next.
struct rw_state {
  u32 sent[RW_FLAGS];
  u32 seen[RW_FLAGS];
  u64 bases[2];        // where the allocations are mapped that the peer named last: of its input, of its output
  u32 entries[2];
  u64 unused;
};

// What a block knows while it runs a program.
struct rw_block {
  u64 inputs[RW_RANKS], outputs[RW_RANKS], scalars[RW_RANKS];
  rw_state state[RW_RANKS];
  u64 pointers[RW_PLACES];      // of the step at work
  u32 part;            // at work
  u32 epoch;           // of cards
  u32 number;          // of this launch, in block 0
  u32 told;            // whether the host was told of a wait
  u32 unit, head;      // bytes moved at a time, and bytes before the first such
};

RW_FN rw_report *rw_report_of(const rw_launch &launch) { return (rw_report *)launch.report; }

RW_FN rw_record *rw_record_at(const rw_launch &launch, u32 part, u64 station, u32 from, u32 flag) {
  return (rw_record *)station + ((u64)(from * RW_FLAGS + flag) * launch.parts_most + part);
}

RW_FN rw_state *rw_state_at(const rw_launch &launch, u32 part, u32 peer) {
  return (rw_state *)(launch.station + launch.state) + (u64)peer * launch.parts_most + part;
}

RW_FN u32 *rw_epoch_at(const rw_launch &launch, u32 part) { return (u32 *)rw_state_at(launch, 0, launch.ranks) + part; }

// Launches that began, and that ended.
RW_FN u32 *rw_launches(const rw_launch &launch) { return (u32 *)(launch.station + launch.maps) - 2; }

// What a rank names to other processes.
RW_FN u64 *rw_book_of(const rw_launch &launch, u64 station) {
  return (u64 *)(station + launch.maps) + (u64)launch.ranks * RW_ENTRIES;
}

RW_FN bool rw_aborted(const rw_launch &launch) { return rw_load_relaxed(&rw_report_of(launch)->abort) != 0; }

// Looks at the abort word now and then, as it is far away; says whether to give up.
RW_FN bool rw_gives_up(const rw_launch &launch, rw_block &block, u32 spins, u32 peer, u32 flag) {
  RW_PAUSE(spins);
  if ((spins & 1023) != 1023) return false;
  if (blockIdx.x == 0) {
    rw_set(&block.told);
    rw_store_relaxed(&rw_report_of(launch)->launch, block.number);
    rw_store_relaxed(&rw_report_of(launch)->waits_flag, flag);
    rw_store_relaxed(&rw_report_of(launch)->waits_for, peer + 1);
  }
  return rw_aborted(launch);
}

// Tells the host that a peer is in another call, and ends all launches.
RW_FN void rw_differs(const rw_launch &launch, u32 peer, u32 own_tag, u32 their_tag) {
  rw_report *report = rw_report_of(launch);
  rw_store_relaxed(&report->their_tag, their_tag);
  rw_store_relaxed(&report->own_tag, own_tag);
  rw_store_relaxed(&report->mismatch, peer + 1);
  rw_store_relaxed(&report->abort, 1u);
}

// The bits of this rank's factor of a premultiplied sum.
RW_FN u64 rw_own_scalar(const rw_call &call) {
#ifdef RW_OP
  if (call.scalar_is_address) {
    Accumulator value = rw_widen(*(const Element *)call.scalar);
#if RW_FLOAT
    return rw_bits(value);
#else
    return (u64)value;
#endif
  }
#endif
  return call.scalar;
}

// Tells a peer. Where nothing was written since the launch began (`quiet`) there is nothing to put in order: words that
// name buffers prove themselves, and what came before the launch is in order since its first fence.
RW_FN void rw_signal(const rw_launch &launch, rw_block &block, const rw_op &op, u32 peer, bool quiet) {
  const rw_call &call = rw_call_at(launch, op.call);
  u32 count = ++block.state[peer].sent[op.flag];
  rw_record *record = rw_record_at(launch, block.part, rw_station_of(launch, peer), launch.rank, op.flag);
  if ((op.flag & 1) == 0) {
    bool foreign = launch.foreign >> peer & 1;
    u64 check = (u64)count << 56;
    rw_store_relaxed(&record->input, check | (foreign ? call.input_token : call.input));
    rw_store_relaxed(&record->output, check | (foreign ? call.output_token : call.output));
    if (RW_SCALED) rw_store_relaxed(&record->scalar, block.scalars[launch.rank]);
  }
  if (!quiet) rw_fence(launch.near >> peer & 1);
  rw_store_relaxed(&record->word, (u64)call.tag << 32 | count);
}

// The address here of memory of a peer, which is mapped first if need be; false when the launch is given up.
// Block 0 asks the host; the others wait until it has the answer. What was mapped stays so, and is remembered.
RW_FN bool rw_translate(const rw_launch &launch, rw_block &block, u32 peer, u64 told, u32 which, u64 *here) {
  told &= (1ull << 56) - 1;
  *here = told;
  if ((launch.foreign >> peer & 1) == 0 || told == 0) return true;
  u32 entry = (u32)(told >> 40);
  rw_state &state = block.state[peer];
  if (state.bases[which] != 0 && state.entries[which] == entry) {
    *here = state.bases[which] + (told & ((1ull << 40) - 1));
    return true;
  }
  u64 *place = (u64 *)(launch.station + launch.maps) + (u64)peer * RW_ENTRIES + entry;
  rw_request *request = &rw_report_of(launch)->requests[peer];
  for (u32 spins = 0;; spins++) {
    u64 base = rw_load_relaxed(place);
    if (base == 0 && blockIdx.x == 0) {
      if (spins == 0) {
        const u64 *line = rw_book_of(launch, rw_station_of(launch, peer)) + (u64)entry * RW_ENTRY_WORDS;
        for (u32 i = 0; i < 8; i++) rw_store_relaxed(&request->handle[i], rw_load_relaxed(line + i));
        rw_store_release(&request->asked, (u64)entry + 1);
      } else if ((spins & 15) == 0 && rw_load_acquire(&request->answered) == (u64)entry + 1) {
        base = rw_load_relaxed(&request->base);
        rw_store_relaxed(place, base);
      }
    }
    if (base != 0) {
      state.bases[which] = base;
      state.entries[which] = entry;
      *here = base + (told & ((1ull << 40) - 1));
      return true;
    }
    if (rw_gives_up(launch, block, spins, peer, 0)) return false;
  }
}

RW_FN bool rw_wait(const rw_launch &launch, rw_block &block, const rw_op &op, u32 peer) {
  const rw_call &call = rw_call_at(launch, op.call);
  u32 count = ++block.state[peer].seen[op.flag];
  const rw_record *record = rw_record_at(launch, block.part, launch.station, peer, op.flag);
  bool opens = (op.flag & 1) == 0;
  for (u32 spins = 0;; spins++) {
    // All at once: a look takes long.
    u64 word = rw_load_relaxed(&record->word), input = 0, output = 0;
    if (opens) {
      input = rw_load_relaxed(&record->input);
      output = rw_load_relaxed(&record->output);
    }
    if ((int)((u32)word - count) >= 0) {
      rw_fence(launch.near >> peer & 1);
      if (!opens) return true;
      if ((u32)word == count && (u32)(word >> 32) != call.tag) {
        rw_differs(launch, peer, call.tag, (u32)(word >> 32));
        return false;
      }
      if ((u8)(input >> 56) == (u8)count && (u8)(output >> 56) == (u8)count) {
        if (RW_SCALED) block.scalars[peer] = rw_load_relaxed(&record->scalar);
        return rw_translate(launch, block, peer, input, 0, &block.inputs[peer]) && rw_translate(launch, block, peer, output, 1, &block.outputs[peer]);
      }
    }
    if (rw_gives_up(launch, block, spins, peer, op.flag)) return false;
  }
}

RW_FN u64 rw_address(const rw_launch &launch, const rw_block &block, const rw_op &op, const rw_span &span) {
  const rw_call &call = rw_call_at(launch, op.call);
  switch (span.region) {
    case RW_INPUT: return call.input + span.offset;
    case RW_OUTPUT: return call.output + span.offset;
    case RW_PEER_INPUT: return block.inputs[span.rank] + span.offset;
    case RW_PEER_OUTPUT: return block.outputs[span.rank] + span.offset;
    default: return 0;
  }
}

// Packets of a peer's card that this block reads, or of this rank's card at a peer.
RW_FN u8 *rw_packets(const rw_launch &launch, const rw_block &block, u64 station, u32 from) {
  u64 slot = (u64)(block.epoch & 1) * launch.ranks + from;
  return (u8 *)station + launch.cards + slot * launch.card_bytes + launch.card_bytes / launch.parts_most * block.part;
}

// 8 bytes of plain memory of which `bytes` are there, at any address.
RW_FN u64 rw_load_unit(const u8 *from, u32 bytes) {
  if (bytes >= 8 && ((u64)from & 7) == 0) return *(const u64 *)from;
  u64 unit = 0;
  for (u32 i = 0; i < bytes && i < 8; i++) unit |= (u64)from[i] << (8 * i);
  return unit;
}

RW_FN void rw_store_unit(u8 *to, u64 unit, u32 bytes) {
  if (bytes >= 8 && ((u64)to & 7) == 0) {
    *(u64 *)to = unit;
    return;
  }
  for (u32 i = 0; i < bytes && i < 8; i++) to[i] = (u8)(unit >> (8 * i));
}

// What this block has of a card: units from `first`, in bytes of the whole.
struct rw_share {
  u64 bytes, first;
  u32 units;
};

RW_FN rw_share rw_share_of(const rw_block &block, const rw_op &op, u64 bytes) {
  u64 all = (bytes + 7) / 8, each = (all + op.parts - 1) / op.parts, before = each * block.part;
  rw_share share = {bytes, before * 8, before < all ? (u32)(all - before < each ? all - before : each) : 0};
  return share;
}

// Bytes of a unit that are there.
RW_FN u32 rw_unit_bytes(const rw_share &share, u32 unit) {
  u64 left = share.bytes - (share.first + (u64)unit * 8);
  return left < 8 ? (u32)left : 8;
}

// Units of a card that a thread handles at a time, so that their loads are under way together.
#define RW_ABREAST 4

// The second flag of a packet: which call it is of, by half of its tag, and half of the epoch.
RW_FN u32 rw_mark(const rw_launch &launch, const rw_block &block, const rw_op &op) {
  return (rw_call_at(launch, op.call).tag & 0xffff0000u) | (block.epoch & 0xffffu);
}

template <int TRIPS>
RW_FN void rw_show_units(const rw_launch &launch, const rw_block &block, const rw_op &op, const rw_share &share, const u8 *source, u32 unit) {
  u32 mark = rw_mark(launch, block, op);
  u64 values[TRIPS];
#pragma unroll
  for (int trip = 0; trip < TRIPS; trip++) {
    u32 at = unit + trip * blockDim.x;
    values[trip] = rw_load_unit(source + share.first + (u64)at * 8, rw_unit_bytes(share, at));
  }
  for (u32 distance = 1; distance < launch.ranks; distance++) {
    u32 peer = (launch.rank + distance) % launch.ranks;
    u8 *to = rw_packets(launch, block, rw_station_of(launch, peer), launch.rank);
#pragma unroll
    for (int trip = 0; trip < TRIPS; trip++) {
      rw_words packet = {(u32)values[trip], block.epoch, (u32)(values[trip] >> 32), mark};
      rw_store_packet(to + (u64)(unit + trip * blockDim.x) * 16, packet);
    }
  }
}

RW_FN void rw_show(const rw_launch &launch, const rw_block &block, const rw_op &op, u32 size) {
  const u8 *source = (const u8 *)rw_address(launch, block, op, rw_span_at(launch, op.first));
  rw_share share = rw_share_of(block, op, op.amount * size);
  u32 unit = threadIdx.x;
  for (; unit + (RW_ABREAST - 1) * blockDim.x < share.units; unit += RW_ABREAST * blockDim.x)
    rw_show_units<RW_ABREAST>(launch, block, op, share, source, unit);
  for (; unit < share.units; unit += blockDim.x) rw_show_units<1>(launch, block, op, share, source, unit);
}

// Units of a peer's card, once they are there.
template <int TRIPS>
RW_FN bool rw_see(const rw_launch &launch, rw_block &block, const rw_op &op, u32 peer, u32 unit, u64 *values) {
  const u8 *from = rw_packets(launch, block, launch.station, peer);
  const u32 mark = rw_mark(launch, block, op);
  for (u32 spins = 0;; spins++) {
    bool is_there = true;
    rw_words packets[TRIPS];
#pragma unroll
    for (int trip = 0; trip < TRIPS; trip++) packets[trip] = rw_load_packet(from + (u64)(unit + trip * blockDim.x) * 16);
#pragma unroll
    for (int trip = 0; trip < TRIPS; trip++) {
      values[trip] = (u64)packets[trip].z << 32 | packets[trip].x;
      is_there = is_there && packets[trip].y == block.epoch && packets[trip].w == mark;
    }
    if (is_there) return true;
    // Halves of a packet may come one after the other, but not that late.
    u32 other = packets[0].w;
    if ((spins & 1023) == 1023 && packets[0].y == block.epoch && (u16)other == (u16)mark && other != mark) {
      rw_differs(launch, peer, mark, other);
      return false;
    }
    if (rw_gives_up(launch, block, spins, peer, 0)) return false;
  }
}

// How the pointers of a step can be walked together: all at the same place of a 16-byte line, else of a
// 4-byte word, else byte by byte (or value by value).
RW_FN void rw_survey(rw_block &block, u32 pointers, u32 size) {
  u64 differ = 0;
  for (u32 i = 1; i < pointers; i++) differ |= block.pointers[i] ^ block.pointers[0];
  u32 unit = (differ & 15) == 0 ? 16 : (differ & 3) == 0 && size == 1 ? 4 : size;
  u32 head = (u32)(0 - block.pointers[0]) & (unit - 1);
  if (head % size != 0) {
    unit = size;
    head = 0;
  }
  block.unit = unit;
  block.head = head;
}

#ifdef RW_OP

// Operands, as many as a step has where RW_OPERANDS is 0; those read at once, and packs of each: about eight
// packs are under way.
#if RW_OPERANDS == 0
#define RW_SOURCES op.sources
#define RW_BATCH 1
#else
#define RW_SOURCES RW_OPERANDS
#if RW_OPERANDS <= 8
#define RW_BATCH RW_OPERANDS
#else
#define RW_BATCH 8
#endif
#endif
#define RW_TRIPS (RW_PER_PACK * sizeof(Accumulator) > 32 || RW_BATCH > 4 ? 1 : RW_PER_PACK * sizeof(Accumulator) > 16 || RW_BATCH > 2 ? 2 : 4)

RW_FN Accumulator rw_take(const rw_launch &launch, const rw_block &block, const rw_op &op, u32 source, Accumulator value) {
  if (RW_IS(5)) {
    const rw_span &span = rw_span_at(launch, op.first + source);
    value = rw_scale(value, span.region == RW_INPUT || span.region == RW_OUTPUT ? block.scalars[launch.rank] : block.scalars[span.rank]);
  }
  return value;
}

RW_FN Accumulator rw_finish(const rw_launch &launch, Accumulator value) {
  return RW_IS(4) ? rw_average(value, launch.ranks) : value;
}

// One value after another: what no pack covers.
RW_FN void rw_fold_one(const rw_launch &launch, const rw_block &block, const rw_op &op, u64 index) {
  Accumulator sum = rw_take(launch, block, op, 0, rw_widen(((const Element *)block.pointers[0])[index]));
  for (u32 source = 1; source < op.sources; source++)
    sum = rw_combine(sum, rw_take(launch, block, op, source, rw_widen(((const Element *)block.pointers[source])[index])));
  Element value = rw_narrow(rw_finish(launch, sum));
  for (u32 target = 0; target < op.targets; target++) ((Element *)block.pointers[op.sources + target])[index] = value;
}

// TRIPS packs of every operand, `threads` packs from one to the next.
template <int TRIPS>
RW_FN void rw_fold_packs(const rw_launch &launch, const rw_block &block, const rw_op &op, u64 pack, u64 threads) {
  Accumulator sum[TRIPS][RW_PER_PACK];
  for (u32 first = 0; first < RW_SOURCES; first += RW_BATCH) {
    rw_pack raw[RW_BATCH][TRIPS];
#pragma unroll
    for (int i = 0; i < RW_BATCH; i++) {
      if (RW_SOURCES % RW_BATCH != 0 && first + i >= RW_SOURCES) continue;
      const u8 *from = (const u8 *)block.pointers[first + i] + block.head + pack * 16;
#pragma unroll
      for (int trip = 0; trip < TRIPS; trip++) raw[i][trip] = rw_load_pack(from + trip * threads * 16);
    }
#pragma unroll
    for (int i = 0; i < RW_BATCH; i++) {
      if (RW_SOURCES % RW_BATCH != 0 && first + i >= RW_SOURCES) continue;
#pragma unroll
      for (int trip = 0; trip < TRIPS; trip++) {
        Accumulator values[RW_PER_PACK];
        rw_widen_pack(raw[i][trip], values);
#pragma unroll
        for (int k = 0; k < RW_PER_PACK; k++) {
          Accumulator value = rw_take(launch, block, op, first + i, values[k]);
          sum[trip][k] = first == 0 && i == 0 ? value : rw_combine(sum[trip][k], value);
        }
      }
    }
  }
#pragma unroll
  for (int trip = 0; trip < TRIPS; trip++) {
#pragma unroll
    for (int k = 0; k < RW_PER_PACK; k++) sum[trip][k] = rw_finish(launch, sum[trip][k]);
    rw_pack result = rw_narrow_pack(sum[trip]);
    u64 at = block.head + (pack + trip * threads) * 16;
    for (u32 target = 0; target < op.targets; target++) rw_store_pack((u8 *)block.pointers[RW_SOURCES + target] + at, result);
  }
}

RW_FN void rw_fold(const rw_launch &launch, const rw_block &block, const rw_op &op) {
  u64 thread = (u64)block.part * blockDim.x + threadIdx.x, threads = (u64)op.parts * blockDim.x;
  bool packed = block.unit == 16;
  u64 head = packed ? block.head / sizeof(Element) : op.amount;
  if (head > op.amount) head = op.amount;
  u64 packs = (op.amount - head) / RW_PER_PACK, tail = head + packs * RW_PER_PACK, loose = head + op.amount - tail;
  u64 pack = thread;
  for (; pack + (RW_TRIPS - 1) * threads < packs; pack += RW_TRIPS * threads) rw_fold_packs<RW_TRIPS>(launch, block, op, pack, threads);
  for (; pack < packs; pack += threads) rw_fold_packs<1>(launch, block, op, pack, threads);
  for (u64 at = thread; at < loose; at += threads) rw_fold_one(launch, block, op, at < head ? at : tail + (at - head));
}

// From cards: own values from the input, those of others as they arrive.
template <int TRIPS>
RW_FN bool rw_fold_units(const rw_launch &launch, rw_block &block, const rw_op &op, const rw_share &share, u32 unit) {
  Accumulator sum[TRIPS][RW_PER_PACK];
  for (u32 source = 0; source < op.sources; source++) {
    const rw_span &span = rw_span_at(launch, op.first + source);
    u64 units[TRIPS];
    if (span.region == RW_CARD) {
      if (!rw_see<TRIPS>(launch, block, op, span.rank, unit, units)) return false;
    } else {
      const u8 *from = (const u8 *)rw_address(launch, block, op, span) + share.first;
#pragma unroll
      for (int trip = 0; trip < TRIPS; trip++) {
        u32 at = unit + trip * blockDim.x;
        units[trip] = rw_load_unit(from + (u64)at * 8, rw_unit_bytes(share, at));
      }
    }
#pragma unroll
    for (int trip = 0; trip < TRIPS; trip++) {
      // Half a pack; the other half is not looked at.
      rw_pack pack = {{(u32)units[trip], (u32)(units[trip] >> 32), 0, 0}};
      Accumulator values[RW_PER_PACK];
      rw_widen_pack(pack, values);
#pragma unroll
      for (int k = 0; k < RW_PER_PACK / 2; k++) {
        Accumulator next = rw_take(launch, block, op, source, values[k]);
        sum[trip][k] = source == 0 ? next : rw_combine(sum[trip][k], next);
      }
    }
  }
  u8 *to = (u8 *)rw_address(launch, block, op, rw_span_at(launch, op.first + op.sources)) + share.first;
#pragma unroll
  for (int trip = 0; trip < TRIPS; trip++) {
#pragma unroll
    for (int k = 0; k < RW_PER_PACK; k++) sum[trip][k] = k < RW_PER_PACK / 2 ? rw_finish(launch, sum[trip][k]) : (Accumulator)0;
    rw_pack result = rw_narrow_pack(sum[trip]);
    u32 at = unit + trip * blockDim.x;
    rw_store_unit(to + (u64)at * 8, (u64)result.word[1] << 32 | result.word[0], rw_unit_bytes(share, at));
  }
  return true;
}

RW_FN bool rw_fold_cards(const rw_launch &launch, rw_block &block, const rw_op &op) {
  rw_share share = rw_share_of(block, op, op.amount * sizeof(Element));
  u32 unit = threadIdx.x;
  for (; unit + (RW_ABREAST - 1) * blockDim.x < share.units; unit += RW_ABREAST * blockDim.x)
    if (!rw_fold_units<RW_ABREAST>(launch, block, op, share, unit)) return false;
  for (; unit < share.units; unit += blockDim.x)
    if (!rw_fold_units<1>(launch, block, op, share, unit)) return false;
  return true;
}

#else

template <int TRIPS>
RW_FN void rw_copy_packs(const rw_block &block, const rw_op &op, u64 pack, u64 threads) {
  rw_pack raw[TRIPS];
  u64 at = block.head + pack * 16;
#pragma unroll
  for (int trip = 0; trip < TRIPS; trip++) raw[trip] = rw_load_pack((const u8 *)block.pointers[0] + at + trip * threads * 16);
  for (u32 target = 0; target < op.targets; target++)
#pragma unroll
    for (int trip = 0; trip < TRIPS; trip++) rw_store_pack((u8 *)block.pointers[1 + target] + at + trip * threads * 16, raw[trip]);
}

// Copies: one source, one or several targets.
RW_FN void rw_copy(const rw_block &block, const rw_op &op) {
  u64 thread = (u64)block.part * blockDim.x + threadIdx.x, threads = (u64)op.parts * blockDim.x;
  u64 unit = block.unit, head = block.head < op.amount ? block.head : op.amount;
  u64 units = (op.amount - head) / unit, tail = head + units * unit;
  const u8 *source = (const u8 *)block.pointers[0];
  for (u64 at = thread; at < head + (op.amount - tail); at += threads) {
    u64 byte = at < head ? at : tail + (at - head);
    for (u32 target = 0; target < op.targets; target++) ((u8 *)block.pointers[1 + target])[byte] = source[byte];
  }
  if (unit == 16) {
    const int trips = 8;
    u64 at = thread;
    for (; at + (trips - 1) * threads < units; at += threads * trips) rw_copy_packs<trips>(block, op, at, threads);
    for (; at < units; at += threads) rw_copy_packs<1>(block, op, at, threads);
  } else if (unit == 4) {
    for (u64 at = thread; at < units; at += threads) {
      u32 value = *(const u32 *)(source + head + at * 4);
      for (u32 target = 0; target < op.targets; target++) *(u32 *)((u8 *)block.pointers[1 + target] + head + at * 4) = value;
    }
  } else {
    for (u64 at = thread; at < units; at += threads)
      for (u32 target = 0; target < op.targets; target++) ((u8 *)block.pointers[1 + target])[head + at] = source[head + at];
  }
}

template <int TRIPS>
RW_FN bool rw_copy_units(const rw_launch &launch, rw_block &block, const rw_op &op, u32 peer, u8 *to, const rw_share &share, u32 unit) {
  u64 values[TRIPS];
  if (!rw_see<TRIPS>(launch, block, op, peer, unit, values)) return false;
#pragma unroll
  for (int trip = 0; trip < TRIPS; trip++) {
    u32 at = unit + trip * blockDim.x;
    rw_store_unit(to + share.first + (u64)at * 8, values[trip], rw_unit_bytes(share, at));
  }
  return true;
}

RW_FN bool rw_copy_card(const rw_launch &launch, rw_block &block, const rw_op &op) {
  u32 peer = rw_span_at(launch, op.first).rank;
  u8 *to = (u8 *)rw_address(launch, block, op, rw_span_at(launch, op.first + 1));
  rw_share share = rw_share_of(block, op, op.amount);
  u32 unit = threadIdx.x;
  for (; unit + (RW_ABREAST - 1) * blockDim.x < share.units; unit += RW_ABREAST * blockDim.x)
    if (!rw_copy_units<RW_ABREAST>(launch, block, op, peer, to, share, unit)) return false;
  for (; unit < share.units; unit += blockDim.x)
    if (!rw_copy_units<1>(launch, block, op, peer, to, share, unit)) return false;
  return true;
}

#endif

RW_FN bool rw_has_cards(const rw_launch &launch, const rw_op &op) {
  for (u32 source = 0; source < op.sources; source++)
    if (rw_span_at(launch, op.first + source).region == RW_CARD) return true;
  return false;
}

// Says whether to go on, the same to all threads of the block.
RW_FN bool rw_step(const rw_launch &launch, rw_block &block, const rw_op &op, bool quiet) {
  switch (op.code) {
    case RW_SIGNAL:
      // What all threads of the block wrote comes before the signal.
      __syncthreads();
      for (u32 peer = threadIdx.x; peer < launch.ranks; peer += blockDim.x)
        if (op.amount >> peer & 1) rw_signal(launch, block, op, peer, quiet);
      return true;
    case RW_WAIT: {
      bool has_met = true;
      for (u32 peer = threadIdx.x; peer < launch.ranks; peer += blockDim.x)
        if (op.amount >> peer & 1) has_met = rw_wait(launch, block, op, peer) && has_met;
      return !__syncthreads_or(!has_met);
    }
    case RW_SHOW:
      __syncthreads();
      if (threadIdx.x == 0) *rw_epoch_at(launch, block.part) = ++block.epoch;
      __syncthreads();
      rw_show(launch, block, op, RW_BYTES);
      return true;
    default:
      if (rw_has_cards(launch, op)) {
#ifdef RW_OP
        bool has_seen = rw_fold_cards(launch, block, op);
#else
        bool has_seen = rw_copy_card(launch, block, op);
#endif
        return !__syncthreads_or(!has_seen);
      }
      __syncthreads();
      for (u32 i = threadIdx.x; i < (u32)op.sources + op.targets; i += blockDim.x)
        block.pointers[i] = rw_address(launch, block, op, rw_span_at(launch, op.first + i));
      __syncthreads();
      if (threadIdx.x == 0) rw_survey(block, op.sources + op.targets, RW_BYTES);
      __syncthreads();
#ifdef RW_OP
      rw_fold(launch, block, op);
#else
      rw_copy(block, op);
#endif
      return true;
  }
}

// Puts away what is known of the part at work, and turns to another of this block.
RW_FN void rw_turn(const rw_launch &launch, rw_block &block, u32 part) {
  __syncthreads();
  for (u32 peer = threadIdx.x; peer < launch.ranks; peer += blockDim.x) {
    *rw_state_at(launch, block.part, peer) = block.state[peer];
    block.state[peer] = *rw_state_at(launch, part, peer);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    block.part = part;
    block.epoch = *rw_epoch_at(launch, part);
  }
  __syncthreads();
}

// Says whether to go on: the share that all parts of this block have of a step.
RW_FN bool rw_step_of_parts(const rw_launch &launch, rw_block &block, const rw_op &op, bool quiet) {
  for (u32 part = blockIdx.x; part < op.parts; part += gridDim.x) {
    if (part != block.part) rw_turn(launch, block, part);
    if (!rw_step(launch, block, op, quiet)) return false;
  }
  return true;
}

// The argument of a launch where its words are near: it lies in memory that is slow when first looked at, and a program is
// looked at in many places, one after another.
union alignas(16) rw_near_launch {
  rw_words words[sizeof(rw_launch) / 16];
  rw_launch launch;
};

RW_KERNEL(ringway_run, rw_launch) {
  RW_SHARED rw_block block;
  RW_SHARED rw_near_launch near;
  const u32 thread = threadIdx.x, words = sizeof(rw_launch) / 16;
  // All that a launch begins with is under way at once: loads first, then the fence by which signals come after what
  // other launches wrote, then what was loaded. Its argument nobody else writes.
  rw_words word = {0, 0, 0, 0};
  rw_state state;
  u32 epoch = 0, number = 0;
  if (thread < words) word = rw_load_argument(&launch, thread);
  rw_await_stream();
  if (thread < launch.ranks) state = *rw_state_at(launch, blockIdx.x, thread);
  if (thread == 0) {
    epoch = *rw_epoch_at(launch, blockIdx.x);
    if (blockIdx.x == 0) number = *rw_launches(launch) + 1;
  }
  bool all_near = (launch.near | 1ull << launch.rank) + 1 == 1ull << launch.ranks;
  if (thread < launch.ranks) rw_fence(all_near);
  if (thread < words) near.words[thread] = word;
  for (u32 i = thread + blockDim.x; i < words; i += blockDim.x) near.words[i] = rw_load_argument(&launch, i);
  if (thread < launch.ranks) block.state[thread] = state;
  for (u32 peer = thread + blockDim.x; peer < launch.ranks; peer += blockDim.x) {
    rw_fence(all_near);
    block.state[peer] = *rw_state_at(launch, blockIdx.x, peer);
  }
  if (thread == 0) {
#if defined(RW_OP) && RW_OP == 6
    rw_chosen = launch.op;
#endif
    // Of a program with factors there is one call.
    if (RW_SCALED) block.scalars[launch.rank] = rw_own_scalar(rw_call_at(launch, 0));
    block.part = blockIdx.x;
    block.epoch = epoch;
    block.number = number;
    block.told = 0;
    if (blockIdx.x == 0) *rw_launches(launch) = number;
  }
  // Peers read an entry once block 0 has told theirs of it.
  bool names = launch.named < launch.names;
  if (blockIdx.x == 0 && names) {
    u64 from = (u64)launch.named * RW_ENTRY_WORDS, to = (u64)launch.names * RW_ENTRY_WORDS;
    for (u64 i = from + thread; i < to; i += blockDim.x)
      rw_store_relaxed(rw_book_of(launch, launch.station) + i, rw_load_relaxed((const u64 *)launch.book + i));
    __threadfence_system();
  }
  __syncthreads();
  const rw_launch &here = near.launch;
  for (u32 i = 0; i < here.ops; i++)
    if (!rw_step_of_parts(here, block, rw_op_at(here, i), i == 0 && !names && !RW_SCALED)) break;
  rw_release_stream();
  __syncthreads();
  for (u32 peer = thread; peer < here.ranks; peer += blockDim.x) *rw_state_at(here, block.part, peer) = block.state[peer];
  if (thread == 0 && blockIdx.x == 0) {
    if (block.told) rw_store_relaxed(&rw_report_of(here)->waits_for, 0u);
    rw_launches(here)[1] = block.number;
  }
}
