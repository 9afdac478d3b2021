// One launch: the program of a rank's part of one or several calls, run by every block.
//
// The Rust side (device/program.rs) writes the program and lays out the structures below; both sides must
// agree to the byte. arithmetic.h and memory.h stand in front of this file. Blocks work side by side: block b does its
// part of each step, and its signals meet those of block b of other ranks.
//
// Memory that other ranks write is read with acquire or volatile loads only, and every wait looks at the
// abort word, so that a launch ends when its communicator does.

enum { RW_SIGNAL = 1, RW_WAIT = 2, RW_FOLD = 3, RW_SHOW = 4 };
enum { RW_INPUT = 0, RW_OUTPUT = 1, RW_PEER_INPUT = 2, RW_PEER_OUTPUT = 3, RW_CARD = 4 };

#define RW_FLAGS 4
#define RW_CALLS 16
#define RW_OPS 40
#define RW_SPANS 72
#define RW_ENTRIES 4096
#define RW_ENTRY_WORDS 10
// 8-byte units of a card that one block sends and reads.
#define RW_UNITS 256

// Where values are: bytes from the start of a buffer.
struct rw_span {
  u64 offset;
  u16 region;
  u16 rank;
  u32 unused;
};

struct rw_op {
  u32 code;
  u32 blocks;     // blocks that take part
  u64 amount;     // peers, a bit each (signal, wait); values (fold, show)
  u32 first;      // first span: sources, then targets
  u16 sources;
  u16 targets;
  u16 call;
  u16 flag;
  u32 unused;
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

struct rw_launch {
  u64 station;         // this rank's own
  u64 report;
  u64 state, cards, maps;      // offsets in a station
  u64 card_bytes;      // of one rank's packets of one slot
  u64 foreign;         // ranks of other processes, a bit each
  u64 near;            // ranks on the same GPU, a bit each
  u64 book;            // what this rank names to other processes, in pinned memory
  u32 rank, ranks, blocks, ops;
  u32 named, names;    // entries that the station may not have yet: from, and up to
  u32 op;              // the operation, where the kernel is for all
  u32 unused;
  u64 stations[RW_RANKS];
  rw_call calls[RW_CALLS];
  rw_op program[RW_OPS];
  rw_span spans[RW_SPANS];
};

struct rw_state {
  u32 sent[RW_FLAGS];
  u32 seen[RW_FLAGS];
};

// What a block knows while it runs a program.
struct rw_block {
  u64 inputs[RW_RANKS], outputs[RW_RANKS], scalars[RW_RANKS];
  rw_state state[RW_RANKS];
  u64 pointers[RW_SPANS];      // of the step at work
  u32 epoch;           // of cards
  u32 dead;
  u32 told;            // whether the host was told of a wait
  u32 unit, head;      // bytes moved at a time, and bytes before the first such
};

RW_FN rw_report *rw_report_of(const rw_launch &launch) { return (rw_report *)launch.report; }

RW_FN rw_record *rw_record_at(const rw_launch &launch, u64 station, u32 from, u32 flag) {
  return (rw_record *)station + ((u64)(from * RW_FLAGS + flag) * launch.blocks + blockIdx.x);
}

RW_FN rw_state *rw_state_at(const rw_launch &launch, u32 peer) {
  return (rw_state *)(launch.station + launch.state) + (u64)peer * launch.blocks + blockIdx.x;
}

RW_FN u32 *rw_epoch_at(const rw_launch &launch) {
  return (u32 *)(rw_state_at(launch, launch.ranks) - blockIdx.x) + blockIdx.x;
}

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
    block.told = 1;
    rw_store_relaxed(&rw_report_of(launch)->launch, *rw_launches(launch));
    rw_store_relaxed(&rw_report_of(launch)->waits_flag, flag);
    rw_store_relaxed(&rw_report_of(launch)->waits_for, peer + 1);
  }
  return rw_aborted(launch);
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

RW_FN void rw_signal(const rw_launch &launch, rw_block &block, const rw_op &op, u32 peer) {
  const rw_call &call = launch.calls[op.call];
  u32 count = ++block.state[peer].sent[op.flag];
  rw_record *record = rw_record_at(launch, launch.stations[peer], launch.rank, op.flag);
  if ((op.flag & 1) == 0) {
    bool foreign = launch.foreign >> peer & 1;
    u64 check = (u64)count << 56;
    rw_store_relaxed(&record->input, check | (foreign ? call.input_token : call.input));
    rw_store_relaxed(&record->output, check | (foreign ? call.output_token : call.output));
    rw_store_relaxed(&record->scalar, block.scalars[launch.rank]);
  }
  rw_fence(launch.near >> peer & 1);
  rw_store_relaxed(&record->word, (u64)call.tag << 32 | count);
}

// The address here of memory of a peer, which is mapped first if need be; false when the launch is given up.
// Block 0 asks the host; the others wait until it has the answer.
RW_FN bool rw_translate(const rw_launch &launch, rw_block &block, u32 peer, u64 told, u64 *here) {
  told &= (1ull << 56) - 1;
  *here = told;
  if ((launch.foreign >> peer & 1) == 0 || told == 0) return true;
  u32 entry = (u32)(told >> 40);
  u64 *place = (u64 *)(launch.station + launch.maps) + (u64)peer * RW_ENTRIES + entry;
  rw_request *request = &rw_report_of(launch)->requests[peer];
  for (u32 spins = 0;; spins++) {
    u64 base = rw_load_relaxed(place);
    if (base == 0 && blockIdx.x == 0) {
      if (spins == 0) {
        const u64 *line = rw_book_of(launch, launch.stations[peer]) + (u64)entry * RW_ENTRY_WORDS;
        for (u32 i = 0; i < 8; i++) rw_store_relaxed(&request->handle[i], rw_load_relaxed(line + i));
        rw_store_release(&request->asked, (u64)entry + 1);
      } else if ((spins & 15) == 0 && rw_load_acquire(&request->answered) == (u64)entry + 1) {
        base = rw_load_relaxed(&request->base);
        rw_store_relaxed(place, base);
      }
    }
    if (base != 0) {
      *here = base + (told & ((1ull << 40) - 1));
      return true;
    }
    if (rw_gives_up(launch, block, spins, peer, 0)) return false;
  }
}

RW_FN bool rw_wait(const rw_launch &launch, rw_block &block, const rw_op &op, u32 peer) {
  const rw_call &call = launch.calls[op.call];
  u32 count = ++block.state[peer].seen[op.flag];
  const rw_record *record = rw_record_at(launch, launch.station, peer, op.flag);
  bool opens = (op.flag & 1) == 0;
  for (u32 spins = 0;; spins++) {
    u64 word = rw_load_relaxed(&record->word);
    if ((int)((u32)word - count) >= 0) {
      rw_fence(launch.near >> peer & 1);
      if (!opens) return true;
      if ((u32)word == count && (u32)(word >> 32) != call.tag) {
        rw_report *report = rw_report_of(launch);
        rw_store_relaxed(&report->their_tag, (u32)(word >> 32));
        rw_store_relaxed(&report->own_tag, call.tag);
        rw_store_relaxed(&report->mismatch, peer + 1);
        rw_store_relaxed(&report->abort, 1u);
        return false;
      }
      u64 input = rw_load_relaxed(&record->input), output = rw_load_relaxed(&record->output);
      if ((u8)(input >> 56) == (u8)count && (u8)(output >> 56) == (u8)count) {
        block.scalars[peer] = rw_load_relaxed(&record->scalar);
        return rw_translate(launch, block, peer, input, &block.inputs[peer]) && rw_translate(launch, block, peer, output, &block.outputs[peer]);
      }
    }
    if (rw_gives_up(launch, block, spins, peer, op.flag)) return false;
  }
}

RW_FN u64 rw_address(const rw_launch &launch, const rw_block &block, const rw_op &op, const rw_span &span) {
  const rw_call &call = launch.calls[op.call];
  switch (span.region) {
    case RW_INPUT: return call.input + span.offset;
    case RW_OUTPUT: return call.output + span.offset;
    case RW_PEER_INPUT: return block.inputs[span.rank] + span.offset;
    case RW_PEER_OUTPUT: return block.outputs[span.rank] + span.offset;
    default: return 0;
  }
}

// Packets of a peer's card that this block reads, or of this rank's card at a peer.
RW_FN u8 *rw_packets(const rw_launch &launch, u64 station, u32 from, u32 epoch) {
  u64 slot = (u64)(epoch & 1) * launch.ranks + from;
  return (u8 *)station + launch.cards + slot * launch.card_bytes + (u64)blockIdx.x * RW_UNITS * 16;
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

// Units of this block in a card of so many bytes.
RW_FN u64 rw_first_byte() { return (u64)blockIdx.x * RW_UNITS * 8; }
RW_FN u32 rw_units(u64 bytes) {
  u64 first = rw_first_byte();
  if (bytes <= first) return 0;
  u64 units = (bytes - first + 7) / 8;
  return units < RW_UNITS ? (u32)units : RW_UNITS;
}

RW_FN void rw_show(const rw_launch &launch, const rw_block &block, const rw_op &op, u32 size) {
  const u8 *source = (const u8 *)rw_address(launch, block, op, launch.spans[op.first]);
  u64 bytes = op.amount * size, first = rw_first_byte();
  u32 units = rw_units(bytes);
  for (u32 unit = threadIdx.x; unit < units; unit += blockDim.x) {
    u64 at = first + (u64)unit * 8;
    u64 left = bytes - at;
    u64 value = rw_load_unit(source + at, left < 8 ? (u32)left : 8);
    rw_words packet = {(u32)value, block.epoch, (u32)(value >> 32), block.epoch};
    for (u32 distance = 1; distance < launch.ranks; distance++) {
      u32 peer = (launch.rank + distance) % launch.ranks;
      rw_store_packet(rw_packets(launch, launch.stations[peer], launch.rank, block.epoch) + (u64)unit * 16, packet);
    }
  }
}

// A unit of a peer's card, once it is there.
RW_FN bool rw_see(const rw_launch &launch, rw_block &block, u32 peer, const u8 *from, u32 epoch, u64 *value) {
  for (u32 spins = 0;; spins++) {
    rw_words packet = rw_load_packet(from);
    if (packet.y == epoch && packet.w == epoch) {
      *value = (u64)packet.z << 32 | packet.x;
      return true;
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
    const rw_span &span = launch.spans[op.first + source];
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
  u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x, threads = (u64)op.blocks * blockDim.x;
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
RW_FN bool rw_fold_cards(const rw_launch &launch, rw_block &block, const rw_op &op) {
  u64 bytes = op.amount * sizeof(Element), start = rw_first_byte();
  u32 units = rw_units(bytes);
  for (u32 unit = threadIdx.x; unit < units; unit += blockDim.x) {
    u64 at = start + (u64)unit * 8;
    u64 left = bytes - at;
    u32 here = left < 8 ? (u32)left : 8;
    Accumulator sum[RW_PER_PACK];
    for (u32 source = 0; source < op.sources; source++) {
      const rw_span &span = launch.spans[op.first + source];
      u64 value;
      if (span.region == RW_CARD) {
        const u8 *from = rw_packets(launch, launch.station, span.rank, block.epoch) + (u64)unit * 16;
        if (!rw_see(launch, block, span.rank, from, block.epoch, &value)) return false;
      } else {
        value = rw_load_unit((const u8 *)rw_address(launch, block, op, span) + at, here);
      }
      // Half a pack; the other half is not looked at.
      rw_pack pack = {{(u32)value, (u32)(value >> 32), 0, 0}};
      Accumulator values[RW_PER_PACK];
      rw_widen_pack(pack, values);
#pragma unroll
      for (int k = 0; k < RW_PER_PACK / 2; k++) {
        Accumulator next = rw_take(launch, block, op, source, values[k]);
        sum[k] = source == 0 ? next : rw_combine(sum[k], next);
      }
    }
#pragma unroll
    for (int k = 0; k < RW_PER_PACK; k++) sum[k] = k < RW_PER_PACK / 2 ? rw_finish(launch, sum[k]) : (Accumulator)0;
    rw_pack result = rw_narrow_pack(sum);
    u64 unit_bits = (u64)result.word[1] << 32 | result.word[0];
    rw_store_unit((u8 *)rw_address(launch, block, op, launch.spans[op.first + op.sources]) + at, unit_bits, here);
  }
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
  u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x, threads = (u64)op.blocks * blockDim.x;
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

RW_FN bool rw_copy_card(const rw_launch &launch, rw_block &block, const rw_op &op) {
  const rw_span &span = launch.spans[op.first];
  u8 *to = (u8 *)rw_address(launch, block, op, launch.spans[op.first + 1]);
  u64 start = rw_first_byte();
  u32 units = rw_units(op.amount);
  for (u32 unit = threadIdx.x; unit < units; unit += blockDim.x) {
    u64 at = start + (u64)unit * 8, value;
    u64 left = op.amount - at;
    const u8 *from = rw_packets(launch, launch.station, span.rank, block.epoch) + (u64)unit * 16;
    if (!rw_see(launch, block, span.rank, from, block.epoch, &value)) return false;
    rw_store_unit(to + at, value, left < 8 ? (u32)left : 8);
  }
  return true;
}

#endif

RW_FN bool rw_has_cards(const rw_launch &launch, const rw_op &op) {
  for (u32 source = 0; source < op.sources; source++)
    if (launch.spans[op.first + source].region == RW_CARD) return true;
  return false;
}

RW_FN void rw_step(const rw_launch &launch, rw_block &block, const rw_op &op) {
  switch (op.code) {
    case RW_SIGNAL:
      // What all threads of the block wrote comes before the signal.
      __syncthreads();
      for (u32 peer = threadIdx.x; peer < launch.ranks; peer += blockDim.x)
        if (op.amount >> peer & 1) rw_signal(launch, block, op, peer);
      break;
    case RW_WAIT:
      for (u32 peer = threadIdx.x; peer < launch.ranks; peer += blockDim.x)
        if (op.amount >> peer & 1 && !rw_wait(launch, block, op, peer)) block.dead = 1;
      __syncthreads();
      break;
    case RW_SHOW:
      if (threadIdx.x == 0) block.epoch = *rw_epoch_at(launch) + 1;
      __syncthreads();
      rw_show(launch, block, op, RW_BYTES);
      __syncthreads();
      if (threadIdx.x == 0) *rw_epoch_at(launch) = block.epoch;
      break;
    default:
      if (rw_has_cards(launch, op)) {
#ifdef RW_OP
        if (!rw_fold_cards(launch, block, op)) block.dead = 1;
#else
        if (!rw_copy_card(launch, block, op)) block.dead = 1;
#endif
        __syncthreads();
        break;
      }
      __syncthreads();
      for (u32 i = threadIdx.x; i < (u32)op.sources + op.targets; i += blockDim.x)
        block.pointers[i] = rw_address(launch, block, op, launch.spans[op.first + i]);
      __syncthreads();
      if (threadIdx.x == 0) rw_survey(block, op.sources + op.targets, RW_BYTES);
      __syncthreads();
#ifdef RW_OP
      rw_fold(launch, block, op);
#else
      rw_copy(block, op);
#endif
  }
}

RW_KERNEL(ringway_run, rw_launch) {
  RW_SHARED rw_block block;
  for (u32 peer = threadIdx.x; peer < launch.ranks; peer += blockDim.x) {
    block.state[peer] = *rw_state_at(launch, peer);
    // Of a program with factors there is one call.
    if (peer == launch.rank) block.scalars[peer] = rw_own_scalar(launch.calls[0]);
  }
  if (threadIdx.x == 0) {
    block.dead = 0;
    block.told = 0;
#if defined(RW_OP) && RW_OP == 6
    rw_chosen = launch.op;
#endif
    if (blockIdx.x == 0) ++*rw_launches(launch);
  }
  // Peers read an entry once block 0 has told theirs of it.
  if (blockIdx.x == 0 && launch.named < launch.names) {
    u64 from = (u64)launch.named * RW_ENTRY_WORDS, to = (u64)launch.names * RW_ENTRY_WORDS;
    for (u64 i = from + threadIdx.x; i < to; i += blockDim.x)
      rw_store_relaxed(rw_book_of(launch, launch.station) + i, rw_load_relaxed((const u64 *)launch.book + i));
    __threadfence_system();
  }
  __syncthreads();
  for (u32 i = 0; i < launch.ops && !block.dead; i++) {
    const rw_op &op = launch.program[i];
    if (blockIdx.x < op.blocks) rw_step(launch, block, op);
  }
  __syncthreads();
  for (u32 peer = threadIdx.x; peer < launch.ranks; peer += blockDim.x) *rw_state_at(launch, peer) = block.state[peer];
  if (threadIdx.x == 0 && blockIdx.x == 0) {
    if (block.told) rw_store_relaxed(&rw_report_of(launch)->waits_for, 0u);
    rw_launches(launch)[1] = rw_launches(launch)[0];
  }
}
