//! Boards that are asked, over links that are perfect but for those that are cut.

use std::sync::Arc;

use super::*;
use crate::control::board::Board;
use crate::control::signature::tests::all_reduce;
use crate::control::{Journal, Message, Report, neighbours};

struct Job {
    boards: Vec<Board>,
    journals: Vec<Arc<Journal>>,
    frozen: BTreeSet<Rank>,
    cut: BTreeSet<(Rank, Rank)>,
}

impl Job {
    fn new(ranks: u32) -> Self {
        let identities: Arc<[RankIdentity]> = (0..ranks)
            .map(|rank| RankIdentity { rank, host: format!("h{rank}"), pid: 100 + rank })
            .collect();
        let journals: Vec<_> = (0..ranks).map(|_| Arc::new(Journal::new())).collect();
        let board = |(rank, journal): (Rank, &Arc<Journal>)| {
            let near = neighbours(rank, ranks);
            Board::new(rank, Arc::clone(&identities), &near, Arc::clone(journal))
        };
        let boards = (0..).zip(&journals).map(board).collect();
        Self { boards, journals, frozen: BTreeSet::new(), cut: BTreeSet::new() }
    }

    fn cut(&mut self, a: Rank, b: Rank) {
        self.cut.extend([(a, b), (b, a)]);
    }

    /// Carries messages until there are none; how many there were.
    fn carry(&mut self, now: u64) -> usize {
        let mut carried = 0;
        loop {
            let mut bag = Vec::new();
            for (from, board) in (0..).zip(&mut self.boards) {
                for outgoing in board.take_outgoing() {
                    bag.extend(outgoing.to.iter().map(|to| (from, *to, outgoing.message.clone())));
                }
            }
            bag.retain(|(from, to, _)| {
                !self.cut.contains(&(*from, *to)) && !self.frozen.contains(to)
            });
            if bag.is_empty() {
                return carried;
            }
            carried += bag.len();
            for (from, to, message) in bag {
                self.boards[to as usize].receive(from, message, now);
            }
        }
    }

    /// Asks `rank` at `now`; the answer, and when it came.
    fn ask(&mut self, rank: Rank, now: u64) -> (Standing, u64) {
        let inquiry = self.boards[rank as usize].ask(now);
        self.carry(now);
        let first = self.boards[rank as usize].answer_due(inquiry).unwrap();
        if first > now {
            let look = now + LOOK_MS;
            for (rank, board) in (0..).zip(&mut self.boards) {
                if !self.frozen.contains(&rank) {
                    let cut = &self.cut;
                    board.look(|to| cut.contains(&(rank, to)).then_some(5000), look);
                }
            }
            self.carry(look);
        }
        let due = self.boards[rank as usize].answer_due(inquiry).unwrap();
        (self.boards[rank as usize].answer(inquiry).unwrap(), due - now)
    }

    /// All but `but` are in operation `sequence` and wait, for `ms`, for the next rank.
    fn wait(&self, sequence: u64, but: &[Rank], (now, ms): (u64, u64)) {
        let ranks = u32::try_from(self.journals.len()).unwrap();
        for (rank, journal) in (0..).zip(&self.journals) {
            for earlier in 0..sequence {
                journal.begin(&all_reduce(earlier, 8));
                journal.end(earlier);
            }
            if !but.contains(&rank) {
                journal.begin(&all_reduce(sequence, 8));
                journal.wait_begin((rank + 1) % ranks, now - ms);
            }
        }
    }
}

#[test]
fn a_job_at_work_is_healthy_and_answers_at_once() {
    for ranks in [1, 2, 3, 8, 33] {
        let mut job = Job::new(ranks);
        job.wait(5, &[], (50_000, 3));
        let (standing, after) = job.ask(ranks / 2, 50_000);
        assert_eq!((standing.condition, after), (Condition::Healthy, 0), "{}", standing.text);
        assert_eq!(standing.seats.len(), ranks as usize);
        assert!(standing.seats.iter().all(|seat| seat.state.is_some_and(|s| s.completed == 5)));
        assert!(standing.text.contains("5 completed; none waits for longer than 3 ms"));
        assert!(job.boards.iter().all(|board| !board.is_raised()));
    }
    let mut job = Job::new(4);
    let (standing, _) = job.ask(0, 9);
    assert_eq!(standing.text, "all 4 ranks are between operations; 0 completed");
}

#[test]
fn a_rank_that_has_not_come_is_named() {
    let mut job = Job::new(8);
    job.wait(7, &[3], (50_000, 2_000));
    let (standing, _) = job.ask(5, 50_000);
    assert_eq!((standing.condition, &standing.culprits[..]), (Condition::Slow, &[3][..]));
    assert!(
        standing.text.ends_with("rank 3 (host h3, pid 103) has not entered it"),
        "{}",
        standing.text
    );
    assert!(standing.text.starts_with("operation 7 (all_reduce"), "{}", standing.text);
    let (later, _) = job.ask(5, 60_000);
    assert_eq!((later.condition, &later.culprits[..]), (Condition::Stuck, &[3][..]));
}

#[test]
fn a_rank_that_stands_still_is_named_though_it_is_on_the_way() {
    for ranks in [2, 3, 5, 16] {
        for frozen in 1..ranks {
            let mut job = Job::new(ranks);
            job.wait(0, &[], (50_000, 1_500));
            job.frozen.insert(frozen);
            let (standing, after) = job.ask(0, 50_000);
            assert_eq!(standing.culprits, [frozen], "{}", standing.text);
            assert_eq!((standing.condition, after), (Condition::Stuck, ANSWER_MS_MAX));
            assert!(standing.text.contains("acknowledged, so it is stopped"), "{}", standing.text);
        }
    }
    // Nobody waits for it yet.
    let mut job = Job::new(4);
    job.frozen.insert(2);
    let (standing, _) = job.ask(0, 50_000);
    assert_eq!((standing.condition, &standing.culprits[..]), (Condition::Slow, &[2][..]));
}

#[test]
fn a_link_that_is_silent_is_named_with_both_ends() {
    let mut job = Job::new(4);
    job.wait(2, &[], (50_000, 3_000));
    job.cut(1, 2);
    let (standing, after) = job.ask(3, 50_000);
    assert_eq!(standing.culprits, [1, 2], "{}", standing.text);
    assert_eq!((standing.condition, after), (Condition::Stuck, LOOK_MS + NEWS_MS));
    // Whatever the kernel says: nothing was sent before the question.
    assert!(standing.text.contains("acknowledged for 800 ms"), "{}", standing.text);
    assert_eq!(standing.silent.len(), 2);
}

#[test]
fn a_silent_link_is_not_named_where_a_rank_has_not_come() {
    let mut job = Job::new(4);
    job.wait(2, &[3], (50_000, 3_000));
    job.cut(0, 1);
    let (standing, _) = job.ask(2, 50_000);
    assert_eq!((standing.condition, &standing.culprits[..]), (Condition::Slow, &[3][..]));
}

#[test]
fn of_silent_links_the_one_that_is_so_for_longest_is_named() {
    let mut job = Job::new(6);
    job.wait(2, &[], (50_000, 3_000));
    job.journals[0].note_silent(Some((1, 300)));
    job.journals[4].note_silent(Some((5, 2_000)));
    let (standing, _) = job.ask(2, 50_000);
    assert_eq!(standing.culprits, [4, 5], "{}", standing.text);
    assert!(standing.text.ends_with("1 other link is silent too"), "{}", standing.text);
}

#[test]
fn a_wait_that_has_just_begun_is_short() {
    let mut job = Job::new(2);
    // The waiter's clock was read after that of the board.
    job.journals[0].wait_begin(1, 1_005);
    let (standing, _) = job.ask(0, 1_000);
    assert_eq!(standing.condition, Condition::Healthy, "{}", standing.text);
    // The board's clock has not counted a pause that the journal's has.
    job.journals[0].wait_begin(1, 9_000);
    job.boards[0].stood_still(8_000);
    let (standing, _) = job.ask(0, 3_500);
    assert_eq!(standing.seats[0].state.unwrap().waiting_ms, 2_500);
}

#[test]
fn a_host_that_is_gone_is_told_from_a_process_that_is_stopped() {
    let mut job = Job::new(4);
    job.wait(2, &[], (50_000, 3_000));
    (0..3).for_each(|other| job.cut(3, other));
    let (standing, _) = job.ask(0, 50_000);
    assert_eq!(standing.culprits, [3], "{}", standing.text);
    assert!(standing.text.contains("the link or the host is down"), "{}", standing.text);
}

#[test]
fn messages_have_culprits_too() {
    let mut job = Job::new(3);
    job.journals[0].wait_begin(1, 10_000);
    let (standing, _) = job.ask(2, 30_000);
    assert_eq!((standing.condition, &standing.culprits[..]), (Condition::Stuck, &[1][..]));
    assert!(standing.text.contains("rank 0 waits for it since 20000 ms"), "{}", standing.text);
}

/// So many launches on each rank's GPU, of 8 values, 9 and so on.
fn launches(job: &Job, of_ranks: &[u64]) {
    for (journal, count) in job.journals.iter().zip(of_ranks) {
        (0..*count).for_each(|at| journal.enqueue(&all_reduce(0, 8 + at), 1));
    }
}

#[test]
fn whoever_has_not_put_on_its_gpu_what_kernels_wait_for_is_named() {
    let mut job = Job::new(4);
    launches(&job, &[3, 2, 3, 3]);
    for rank in [0, 2, 3] {
        job.journals[rank].kernel_waits(3, 1, 48_500 + 100 * rank as u64);
    }
    let (standing, after) = job.ask(2, 50_000);
    assert_eq!(
        standing.text,
        "kernels on GPUs: rank 1 (host h1, pid 101) has put no more than launch 2 (all_reduce of 9 float sum) on its GPU, \
         while ranks 0, 2 and 3 wait for it in launch 3 (all_reduce of 10 float sum), which stands still for 1500 ms"
    );
    let seen = (standing.condition, &standing.culprits[..], after);
    assert_eq!(seen, (Condition::Slow, &[1][..], LOOK_MS + NEWS_MS));
    assert_eq!(job.ask(2, 60_000).0.condition, Condition::Stuck);
    // It comes, but its GPU does not.
    job.journals[1].enqueue(&all_reduce(0, 10), 1);
    let text = job.ask(0, 70_000).0.text;
    assert!(
        text.contains("launch 3 (all_reduce of 10 float sum) on its GPU as the last, and none"),
        "{text}"
    );
    // All go on.
    job.journals.iter().for_each(|journal| journal.kernel_goes_on());
    let (standing, _) = job.ask(0, 80_000);
    assert_eq!(standing.condition, Condition::Healthy);
    assert_eq!(
        standing.text,
        "all 4 ranks are between operations; 0 completed, 3 launches on GPUs"
    );
}

#[test]
fn kernels_wait_for_ranks_that_are_elsewhere() {
    // In an operation on host memory, where it waits for the one whose kernel waits for it.
    let mut job = Job::new(2);
    launches(&job, &[1, 0]);
    job.journals[0].kernel_waits(1, 1, 40_000);
    job.journals[1].begin(&all_reduce(0, 5));
    job.journals[1].wait_begin(0, 45_000);
    let (standing, _) = job.ask(0, 50_000);
    assert_eq!(standing.culprits, [1], "{}", standing.text);
    assert!(standing.text.starts_with("operation 0 (all_reduce of 5"), "{}", standing.text);
    assert!(
        standing.text.contains("rank 0 (host h0, pid 100) has not entered it; kernels"),
        "{}",
        standing.text
    );
    let place = "is in operation 0 (all_reduce of 5 float sum) on host memory, waiting for rank 0, while rank 0 waits";
    assert!(standing.text.contains(place), "{}", standing.text);
    // Nowhere yet, gone, or silent.
    let mut job = Job::new(4);
    launches(&job, &[1, 0, 1, 1]);
    job.journals[0].kernel_waits(1, 1, 40_000);
    job.journals[2].kernel_waits(1, 3, 40_000);
    job.frozen.insert(3);
    let (standing, _) = job.ask(0, 50_000);
    assert_eq!((standing.condition, &standing.culprits[..]), (Condition::Stuck, &[1, 3][..]));
    assert!(standing.text.contains("pid 101) has put nothing on its GPU"), "{}", standing.text);
    assert!(
        standing.text.contains("pid 103) does not answer, while rank 2 waits"),
        "{}",
        standing.text
    );
    assert!(standing.text.ends_with("so it is stopped or gets no processor"), "{}", standing.text);
}

#[test]
fn kernels_that_wait_for_each_other_are_all_named() {
    let mut job = Job::new(3);
    launches(&job, &[2, 2, 2]);
    job.journals[0].kernel_waits(1, 1, 40_000);
    job.journals[1].kernel_waits(2, 0, 40_000);
    // Its kernels have been counted by replays: what it enqueued says nothing of them.
    job.journals[2].kernel_waits(70, 0, 40_000);
    let (standing, _) = job.ask(0, 50_000);
    assert_eq!(standing.culprits, [0, 1], "{}", standing.text);
    let circle =
        "wait for each other, rank 0 in launch 1 (all_reduce of 8 float sum), rank 1 in launch 2 (";
    assert!(standing.text.contains(circle), "{}", standing.text);
    let mut job = Job::new(2);
    launches(&job, &[2, 1]);
    job.journals[0].kernel_waits(70, 1, 40_000);
    let text = job.ask(0, 50_000).0.text;
    assert!(
        text.contains("has put launch 1 (all_reduce of 8 float sum) on its GPU as the last"),
        "{text}"
    );
    assert!(text.contains("waits for it in its kernel 70, of a graph that is replayed"), "{text}");
}

#[test]
fn an_error_is_told_and_questions_change_nothing() {
    let mut job = Job::new(2);
    job.boards[0].local(Report::Aborted { rank: 0, reason: "enough".into() }, 10);
    job.carry(10);
    for now in [200, 2_000, 4_000] {
        job.boards.iter_mut().for_each(|board| board.tick(now));
        job.carry(now);
    }
    let (standing, _) = job.ask(1, 5_000);
    assert_eq!(standing.condition, Condition::Failed);
    assert_eq!(standing.text, job.boards[0].verdict().unwrap().to_string());
}

#[test]
fn questions_are_many_and_memory_is_not() {
    let mut job = Job::new(5);
    for round in 0..100 {
        let now = 1_000 * round;
        let inquiry = job.boards[1].ask(now);
        // Who hears of it again does not pass it on again.
        assert!(job.carry(now) <= 5 * 6 * 4, "a flood");
        assert_eq!(job.boards[1].answer(inquiry).unwrap().seats.len(), 5);
    }
    assert!(job.boards.iter().all(|board| board.next_look().is_some()));
    job.boards.iter_mut().for_each(|board| board.look(|_| None, 1_000_000));
    assert!(job.boards.iter().all(|board| board.next_look().is_none()));
    // There is no answer to a question that is forgotten, or was never asked.
    assert_eq!((job.boards[1].answer_due(7), job.boards[1].answer(7)), (None, None));
}

/// All are asked at the same moment, before any has heard of the others' questions: no more is said than is
/// asked, and everybody is told.
#[test]
fn questions_at_once_do_not_multiply() {
    let ranks = 33;
    let mut job = Job::new(ranks);
    let asked: Vec<u64> = job.boards.iter_mut().map(|board| board.ask(10)).collect();
    let again: Vec<u64> = job.boards.iter_mut().map(|board| board.ask(20)).collect();
    assert_eq!(asked, again, "a question that is out does for those who come later");
    let degree = neighbours(0, ranks).len();
    let (questions, messages) = (ranks as usize, 1 + ranks as usize);
    assert!(job.carry(30) <= questions * messages * ranks as usize * degree);
    for (board, inquiry) in job.boards.iter().zip(&asked) {
        let standing = board.answer(*inquiry).unwrap();
        assert_eq!(standing.condition, Condition::Healthy, "{}", standing.text);
    }
    // Whoever has heard one does not ask again.
    let joined = job.boards[5].ask(100);
    assert_eq!(job.carry(100), 0);
    assert!(job.boards[5].answer(joined).is_some());
}

/// More than are remembered: who cannot be answered is sent away, and told nothing that is not so.
#[test]
fn too_many_questions_at_once_have_no_wrong_answers() {
    let ranks = 130;
    let mut job = Job::new(ranks);
    let asked: Vec<u64> = job.boards.iter_mut().map(|board| board.ask(10)).collect();
    job.carry(20);
    let answers = job.boards.iter().zip(&asked).map(|(board, inquiry)| board.answer(*inquiry));
    let wrong: Vec<_> = answers.flatten().filter(|a| a.condition != Condition::Healthy).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    // Nobody is told anything for a while, then all is as before.
    let board = &mut job.boards[0];
    let inquiry = board.ask(1_000);
    assert_eq!(board.answer_due(inquiry), None);
    job.carry(1_000);
    let (standing, _) = job.ask(7, 10_000);
    assert_eq!(standing.condition, Condition::Healthy, "{}", standing.text);
}

#[test]
fn a_question_in_our_name_is_none() {
    let mut job = Job::new(2);
    let forged = Message::Asked { inquiry: 0xffff_fffd };
    job.boards[0].receive(1, forged, 5);
    let (standing, _) = job.ask(0, 10);
    assert_eq!(standing.condition, Condition::Healthy, "{}", standing.text);
}
