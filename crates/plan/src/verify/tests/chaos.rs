//! Runs plans on numbers, in adverse orders: some lanes are slow, puts and signals arrive late.
//!
//! A second opinion on what the verifier lets pass, made without its ideas: no clocks, no runs, no
//! witnesses. A value is a sum of everything folded in and a hash of how.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::plan::{CARD_STRIDE, Flag, Plan, Region, Remote, Span, Step};
use crate::problem::Problem;
use crate::types::{Collective, DataType, Level, Rank};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Number {
    sum: u64,
    order: u64,
}

const GARBAGE: Number = Number { sum: 0xbad, order: 0xbad };

impl Number {
    fn input(rank: Rank, index: u64) -> Self {
        let sum = mix(u64::from(rank) << 32 | index);
        Self { sum, order: sum }
    }

    fn fold(self, other: Self) -> Self {
        Self {
            sum: self.sum.wrapping_add(other.sum),
            order: mix(self.order.rotate_left(7) ^ other.order),
        }
    }
}

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 32)
}

/// A byte: of which number, and which byte of it.
type Byte = (Number, u8);

enum Parcel {
    Values(Remote, Vec<Number>, usize),
    Signal(Flag),
}

struct World<'p> {
    plan: &'p Plan,
    data_type: DataType,
    /// Input, output, scratch and cards of each rank.
    memory: Vec<[Vec<Byte>; 4]>,
    /// What is under way from a lane to a rank, oldest first.
    parcels: BTreeMap<(Rank, usize, Rank), VecDeque<Parcel>>,
    counters: BTreeMap<(Rank, Rank, Flag), u32>,
    shown: BTreeSet<(Rank, u16)>,
    random: u64,
    /// Outputs of ranks that are done: their buffers may hold anything by now.
    results: BTreeMap<Rank, Vec<Byte>>,
}

/// Runs `plan` in an order chosen by `seed` and checks the outputs.
pub(super) fn run(plan: &Plan, seed: u64) -> Result<(), String> {
    let mut world = World::new(plan, seed);
    let mut lanes: Vec<(Rank, usize, usize, u64)> = Vec::new();
    for (rank, part) in (0..).zip(&plan.ranks) {
        for lane in 0..part.lanes.len() {
            let speed = world.speed();
            lanes.push((rank, lane, 0, speed));
        }
    }
    let post = world.speed();
    loop {
        let runnable: Vec<usize> = (0..lanes.len()).filter(|i| world.can_run(lanes[*i])).collect();
        let mail: Vec<_> = world.parcels.keys().copied().collect();
        let weight: u64 =
            runnable.iter().map(|i| lanes[*i].3).sum::<u64>() + mail.len() as u64 * post;
        if weight == 0 {
            break;
        }
        let mut pick = world.next() % weight;
        let chosen = runnable.iter().find(|i| {
            let here = pick < lanes[**i].3;
            pick = if here { pick } else { pick - lanes[**i].3 };
            here
        });
        if let Some(lane) = chosen {
            let (rank, index, step, _) = lanes[*lane];
            lanes[*lane].2 += 1;
            world.run_step(rank, index, plan.ranks[rank as usize].lanes[index][step]);
            let end = |lane: usize| plan.ranks[rank as usize].lanes[lane].len();
            if lanes.iter().all(|(of, lane, step, _)| *of != rank || *step == end(*lane)) {
                world.leave(rank);
            }
        } else {
            let key = mail[usize::try_from(pick / post).unwrap()];
            world.deliver(key);
        }
    }
    for (rank, lane, step, _) in lanes {
        if step < plan.ranks[rank as usize].lanes[lane].len() {
            return Err(format!("rank {rank} lane {lane} stands at step {step}"));
        }
    }
    world.check_counters()?;
    world.check()
}

impl<'p> World<'p> {
    fn new(plan: &'p Plan, seed: u64) -> Self {
        let data_type = plan.problems[0].data_type;
        let size = data_type.size() as u64;
        let memory = (0..)
            .zip(plan.problems.iter().zip(&plan.ranks))
            .map(|(rank, (problem, part))| {
                let input = (0..problem.input_count(rank) * size)
                    .map(|at| {
                        let byte = u8::try_from(at % size).unwrap();
                        (Number::input(rank, at / size), byte)
                    })
                    .collect();
                let room = |bytes: u64| vec![(GARBAGE, 0); usize::try_from(bytes).unwrap()];
                let output = problem.output_count(rank) * size;
                let cards = u64::from(part.cards) * CARD_STRIDE;
                [input, room(output), room(part.scratch_bytes), room(cards)]
            })
            .collect();
        Self {
            plan,
            data_type,
            memory,
            parcels: BTreeMap::new(),
            counters: BTreeMap::new(),
            shown: BTreeSet::new(),
            random: mix(seed + 1),
            results: BTreeMap::new(),
        }
    }

    /// A rank is done, and uses its buffers for something else.
    fn leave(&mut self, rank: Rank) {
        let [input, output, ..] = &mut self.memory[rank as usize];
        self.results.insert(rank, output.clone());
        input.fill((GARBAGE, 0));
        output.fill((GARBAGE, 0));
    }

    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.random)
    }

    /// Some are a thousand times slower than others.
    fn speed(&mut self) -> u64 {
        1 << (self.next() % 11)
    }

    fn can_run(&self, (rank, lane, step, _): (Rank, usize, usize, u64)) -> bool {
        match self.plan.ranks[rank as usize].lanes[lane].get(step) {
            None => false,
            Some(Step::Wait { peer, flag, count }) => {
                self.counters.get(&(*peer, rank, *flag)).is_some_and(|raised| raised >= count)
            }
            Some(Step::See { peer, card }) => self.shown.contains(&(*peer, *card)),
            Some(_) => true,
        }
    }

    fn run_step(&mut self, rank: Rank, lane: usize, step: Step) {
        match step {
            Step::Copy { source, target } => {
                let values = self.read(rank, source);
                self.write_span(rank, target, &values);
            }
            Step::Reduce { first, operands, target, .. } => {
                let list = self.plan.ranks[rank as usize].operands(first, operands);
                let folded = list
                    .iter()
                    .map(|operand| self.read(rank, operand.span))
                    .reduce(|left, right| {
                        left.iter().zip(&right).map(|(l, r)| l.fold(*r)).collect()
                    })
                    .unwrap_or_default();
                self.write_span(rank, target, &folded);
            }
            Step::Put { peer, source, target, signal } => {
                let values = self.read(rank, source);
                let size = source.form.size(self.data_type);
                let queue = self.parcels.entry((rank, lane, peer)).or_default();
                queue.push_back(Parcel::Values(target, values, size));
                queue.extend(signal.map(Parcel::Signal));
            }
            Step::Get { peer, source, target } => {
                let span = Span { region: source.region, offset: source.offset, ..target };
                let values = self.read(peer, span);
                self.write_span(rank, target, &values);
            }
            Step::Signal { peer, flag } => {
                let queue = self.parcels.entry((rank, lane, peer)).or_default();
                queue.push_back(Parcel::Signal(flag));
            }
            Step::Show { source, card } => {
                let values = self.read(rank, source);
                let size = source.form.size(self.data_type);
                let offset = u64::from(card) * CARD_STRIDE;
                self.write(rank, Region::Card(rank), offset, &values, size);
                self.shown.insert((rank, card));
            }
            Step::Wait { .. } | Step::See { .. } => {}
        }
    }

    fn deliver(&mut self, key: (Rank, usize, Rank)) {
        let (from, _, to) = key;
        let queue = self.parcels.get_mut(&key).unwrap();
        let parcel = queue.pop_front().unwrap();
        if queue.is_empty() {
            self.parcels.remove(&key);
        }
        match parcel {
            Parcel::Signal(flag) => *self.counters.entry((from, to, flag)).or_default() += 1,
            Parcel::Values(landing, values, size) => {
                self.write(to, landing.region, landing.offset, &values, size);
            }
        }
    }

    fn bytes(&mut self, rank: Rank, region: Region) -> &mut [Byte] {
        let (rank, space) = match region {
            Region::Input(_) => (rank, 0),
            Region::Output(_) => (rank, 1),
            Region::Scratch => (rank, 2),
            Region::Window(peer) => (peer, 2),
            Region::Card(peer) => (peer, 3),
            Region::PeerInput(peer) => (peer, 0),
            Region::PeerOutput(peer) => (peer, 1),
        };
        &mut self.memory[rank as usize][space]
    }

    fn read(&mut self, rank: Rank, span: Span) -> Vec<Number> {
        let size = span.form.size(self.data_type);
        let start = usize::try_from(span.offset).unwrap();
        let length = usize::try_from(span.count).unwrap() * size;
        self.bytes(rank, span.region)[start..start + length]
            .chunks(size)
            .map(|bytes| {
                let number = bytes[0].0;
                let whole = (0..).zip(bytes).all(|(i, byte)| *byte == (number, i));
                if whole { number } else { GARBAGE }
            })
            .collect()
    }

    fn write_span(&mut self, rank: Rank, span: Span, values: &[Number]) {
        let size = span.form.size(self.data_type);
        self.write(rank, span.region, span.offset, values, size);
    }

    fn write(&mut self, rank: Rank, region: Region, offset: u64, values: &[Number], size: usize) {
        let start = usize::try_from(offset).unwrap();
        let target = &mut self.bytes(rank, region)[start..start + values.len() * size];
        for (bytes, number) in target.chunks_mut(size).zip(values) {
            for (i, byte) in (0..).zip(bytes) {
                *byte = (*number, i);
            }
        }
    }

    /// A signal that nobody waited for would be taken for one of the next operation.
    fn check_counters(&self) -> Result<(), String> {
        let mut waited: BTreeMap<(Rank, Rank, Flag), u32> = BTreeMap::new();
        for (rank, part) in (0..).zip(&self.plan.ranks) {
            for step in part.lanes.iter().flatten() {
                if let Step::Wait { peer, flag, count } = *step {
                    let most = waited.entry((peer, rank, flag)).or_default();
                    *most = count.max(*most);
                }
            }
        }
        if waited == self.counters { Ok(()) } else { Err("signals are left over".to_owned()) }
    }

    fn check(&mut self) -> Result<(), String> {
        let problems = &self.plan.problems;
        for (rank, output) in std::mem::take(&mut self.results) {
            self.memory[rank as usize][1] = output;
        }
        let mut alike: BTreeMap<u64, u64> = BTreeMap::new();
        for (rank, problem) in (0..).zip(problems) {
            let span = Span {
                region: Region::Output(0),
                offset: 0,
                count: problem.output_count(rank),
                form: crate::types::Form::Element,
            };
            for (index, found) in (0..).zip(self.read(rank, span)) {
                let expected = expected(problems, problem, rank, index);
                let order = *alike.entry(index).or_insert(found.order);
                let folded = problem.collective.reduces();
                let ordered = if folded && problem.level == Level::Run {
                    problem.collective == Collective::ReduceScatter || found.order == order
                } else {
                    found.order == expected.order
                };
                if found.sum != expected.sum || !ordered {
                    return Err(format!("value {index} of rank {rank} is wrong"));
                }
            }
        }
        Ok(())
    }
}

fn expected(problems: &[Problem], problem: &Problem, rank: Rank, index: u64) -> Number {
    let fold = |index| {
        (0..problem.ranks)
            .map(|rank| Number::input(rank, index))
            .reduce(Number::fold)
            .unwrap_or(GARBAGE)
    };
    let owner = |block: &dyn Fn(Rank) -> u64| {
        let mut rest = index;
        (0..problem.ranks)
            .find_map(|source| {
                let count = block(source);
                let found = (rest < count).then_some((source, rest));
                rest = rest.wrapping_sub(count);
                found
            })
            .unwrap_or((0, 0))
    };
    match problem.collective {
        Collective::AllReduce | Collective::Reduce => fold(index),
        Collective::ReduceScatter => fold(problem.block(rank).start + index),
        Collective::Broadcast => Number::input(problem.root, index),
        Collective::Scatter => Number::input(problem.root, problem.block(rank).start + index),
        Collective::AllGather | Collective::Gather => {
            let (source, index) = owner(&|source| problem.block(source).count);
            Number::input(source, index)
        }
        Collective::AllToAll => {
            let (source, index) = owner(&|source| problem.receive_block(source).count);
            Number::input(source, problems[source as usize].send_block(rank).start + index)
        }
        Collective::Barrier | Collective::SendRecv => GARBAGE,
    }
}
