//! The hidden `host-agent`: starts the ranks of one host for a launcher elsewhere, and ends them when told, or when
//! nobody is left to tell.
//!
//! *Invariant:* when it returns, none of the processes of a job that was ended is left. The end of its standard input is an
//! order to end; so is a minute without a word, since a cable that was cut says nothing.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ringway::bootstrap::interfaces::{self, Family};
use ringway::config::{AddressFamily, Config, Environment};

use super::wire::{
    Bytes, Frame, GREETING, Order, PROTOCOL, Prepare, Report, Start, Stream, VERSION, decode,
};
use crate::exit::ExitCode;
use crate::launch;
use crate::launch::children::{Attended, Children};
use crate::output;
use crate::run::forward::Forwarder;
use crate::run::{OUTPUT_PATIENCE, program};

/// How long nothing is heard from the launcher before it is taken for gone.
const SILENCE: Duration = Duration::from_secs(60);

/// What the reading thread hears.
enum Heard {
    Order(Order),
    /// The end of the stream, or nonsense.
    Gone,
}

/// Serves one job.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    if io::stdin().is_terminal() {
        bail!("host-agent is started by `ringway run --hosts`, not by hand");
    }
    output::stdout_bytes(format!("{GREETING} {PROTOCOL} {VERSION}\n").as_bytes())
        .context("greeting the launcher")?;
    let (bell, ringer) = UnixStream::pair().context("making a pair of sockets")?;
    let (input, taken) = channel();
    let ears = Ears { heard: listen(ringer, input)?, bell };
    let Some(Order::Prepare(prepare)) = ears.next(SILENCE) else { return Ok(ExitCode::FAILURE) };
    match ready(&prepare) {
        Ok(report) => say(&report)?,
        Err(error) => {
            say(&Report::Refused { why: format!("{error:#}") })?;
            // The launcher reads it, then hangs up.
            let _ = ears.next(SILENCE);
            return Ok(ExitCode::FAILURE);
        }
    }
    let start = loop {
        match ears.next(SILENCE) {
            Some(Order::Start(start)) => break start,
            Some(Order::Beat) => {}
            _ => return Ok(ExitCode::FAILURE),
        }
    };
    if let Err(error) = serve(&prepare, &start, &ears, taken) {
        say(&Report::Refused { why: format!("{error:#}") })?;
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

struct Ears {
    heard: Receiver<Heard>,
    /// Readable when something was heard.
    bell: UnixStream,
}

impl Ears {
    /// The next order; `None` when the launcher is gone.
    fn next(&self, limit: Duration) -> Option<Order> {
        match self.heard.recv_timeout(limit) {
            Ok(Heard::Order(order)) => Some(order),
            Ok(Heard::Gone) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                None
            }
        }
    }
}

/// Reads standard input in a thread: input goes to whoever holds the other end of `input`.
fn listen(mut ringer: UnixStream, input: Sender<Bytes>) -> anyhow::Result<Receiver<Heard>> {
    let (tell, heard) = channel();
    let read = move || {
        let mut stdin = io::stdin().lock();
        loop {
            let heard = match Frame::read(&mut stdin) {
                Ok(Some(Frame::Control(body))) => decode(&body).map_or(Heard::Gone, Heard::Order),
                Ok(Some(Frame::Input(bytes))) => {
                    // Rank 0 may be gone, or on another host.
                    let _ = input.send(bytes);
                    continue;
                }
                Ok(Some(Frame::Output { .. }) | None) | Err(_) => Heard::Gone,
            };
            let last = matches!(heard, Heard::Gone);
            if tell.send(heard).is_err() || ringer.write_all(&[0]).is_err() || last {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("orders".to_owned())
        .spawn(read)
        .context("starting a thread")?;
    Ok(heard)
}

/// Says something to the launcher.
fn say(report: &Report) -> io::Result<()> {
    send(&Frame::control(report)?)
}

fn send(frame: &Frame) -> io::Result<()> {
    // The lock keeps frames whole.
    frame.write(&mut io::stdout().lock())
}

/// Looks whether the job can run here, and where its root would be met.
fn ready(prepare: &Prepare) -> anyhow::Result<Report> {
    let directory = Path::new(OsStr::from_bytes(&prepare.directory));
    std::env::set_current_dir(directory).with_context(|| {
        format!(
            "no working directory {}; make it there, or name another: --workdir",
            directory.display()
        )
    })?;
    let words = words(&prepare.command);
    let path = variable(prepare, "PATH").or_else(|| std::env::var_os("PATH")).unwrap_or_default();
    program::check_in(words.first().context("no program to start")?, &path)?;
    let lossy = |text: &Bytes| String::from_utf8_lossy(text).into_owned();
    let carried = prepare.variables.iter().map(|(name, value)| (lossy(name), lossy(value)));
    let environment = Environment::from_process().with(carried).with(prepare.chosen.clone());
    let config = Config::load(&environment);
    let family = match config.family {
        None => Family::Any,
        Some(AddressFamily::V4) => Family::V4,
        Some(AddressFamily::V6) => Family::V6,
    };
    let survey = interfaces::survey(&|name| config.interfaces.allows(name), family)?;
    // A scope means something on this machine only.
    let portable =
        |address: &SocketAddr| !matches!(address, SocketAddr::V6(v6) if v6.scope_id() != 0);
    let offered = survey.offered.iter().map(|(_, address)| address);
    let addresses: Vec<IpAddr> = offered.filter(|one| portable(one)).map(SocketAddr::ip).collect();
    Ok(Report::Ready { addresses, port: free_port()? })
}

/// A port that is free now; rank 0 binds it in a moment.
fn free_port() -> anyhow::Result<u16> {
    let bound = TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0"));
    let address = bound.and_then(|probe| probe.local_addr());
    Ok(address.context("no free port for the ranks to meet on")?.port())
}

fn words(command: &[Bytes]) -> Vec<OsString> {
    command.iter().map(|word| OsString::from_vec(word.clone())).collect()
}

/// A variable that ranks will have.
fn variable(prepare: &Prepare, name: &str) -> Option<OsString> {
    let chosen = prepare.chosen.iter().rev().find(|(known, _)| known == name);
    let chosen = chosen.map(|(_, value)| OsString::from(value));
    let carried = prepare.variables.iter().find(|(known, _)| known == name.as_bytes());
    chosen.or_else(|| carried.map(|(_, value)| OsString::from_vec(value.clone())))
}

/// Starts the ranks and stays until they have ended.
fn serve(
    prepare: &Prepare,
    start: &Start,
    ears: &Ears,
    input: Receiver<Bytes>,
) -> anyhow::Result<()> {
    let words = words(&prepare.command);
    let (program, rest) = words.split_first().context("no program to start")?;
    let carried =
        prepare.variables.iter().map(|(n, v)| (OsStr::from_bytes(n), OsStr::from_bytes(v)));
    let mut children = Children::new()?;
    let mut forwarder = Forwarder::default();
    let mut input = Some(input);
    for local in 0..start.ranks {
        let rank = start.first + local;
        let place = launch::Place { rank, size: start.size, local, local_size: start.ranks };
        let mut command = launch::command(program, rest)?;
        command.envs(carried.clone()).envs(place.variables(&start.root, &start.secret));
        command.envs(prepare.chosen.iter().map(|(name, value)| (name, value)));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.stdin(if rank == 0 { Stdio::piped() } else { Stdio::null() });
        let child = children
            .start(&mut command)
            .with_context(|| format!("cannot start rank {rank} of {}", start.size))?;
        let pass = |stream| {
            move |bytes: &[u8]| send(&Frame::Output { stream, rank, bytes: bytes.to_vec() })
        };
        if let Some(stdout) = child.stdout.take() {
            forwarder.pass(stdout, String::new(), pass(Stream::Out))?;
        }
        if let Some(stderr) = child.stderr.take() {
            forwarder.pass(stderr, String::new(), pass(Stream::Err))?;
        }
        if let Some((stdin, input)) = child.stdin.take().zip(input.take_if(|_| rank == 0)) {
            feed(stdin, input)?;
        }
    }
    match attend(&mut children, start.first, ears) {
        Parting::Done => {}
        Parting::Signal => bail!("its agent was ended by a signal, and its ranks with it"),
        // Nobody reads what is left, and whoever writes it may be stuck.
        Parting::Gone => return Ok(()),
    }
    forwarder.finish(OUTPUT_PATIENCE);
    say(&Report::Ended).context("telling the launcher")
}

/// Why the ranks are no more.
enum Parting {
    /// They ended by themselves, or the launcher wanted it.
    Done,
    /// The launcher is gone.
    Gone,
    /// This process was told to end, by somebody else.
    Signal,
}

/// Until all ranks have ended: by themselves, or since they had to.
fn attend(children: &mut Children, first: u32, ears: &Ears) -> Parting {
    let mut heard_at = Instant::now();
    let parting = loop {
        let left = SILENCE.saturating_sub(heard_at.elapsed());
        match children.attend(ears.bell.as_fd(), left) {
            Attended::Failed(death) => {
                let ran_ms = u64::try_from(death.ran.as_millis()).unwrap_or(u64::MAX);
                let (pid, status) = (death.pid, death.status.into_raw());
                // The launcher ends the others, or hangs up, which ends them too.
                let _ = say(&Report::Died { rank: first + death.rank, pid, status, ran_ms });
            }
            Attended::AllEnded => return Parting::Done,
            Attended::Signal => break Parting::Signal,
            Attended::Woken => {}
        }
        // One ring for each word: none is left behind that nobody rings for.
        let mut rung = [0_u8; 1];
        let _emptied = rustix::net::recv(&ears.bell, &mut rung, rustix::net::RecvFlags::DONTWAIT);
        match ears.heard.try_recv() {
            Ok(Heard::Order(Order::Beat)) => heard_at = Instant::now(),
            Ok(Heard::Order(_)) => break Parting::Done,
            Ok(Heard::Gone) | Err(TryRecvError::Disconnected) => break Parting::Gone,
            Err(TryRecvError::Empty) if heard_at.elapsed() >= SILENCE => break Parting::Gone,
            Err(TryRecvError::Empty) => {}
        }
    };
    children.end_all();
    parting
}

/// Hands input on to rank 0, a piece at a time: the launcher sends the next when one was taken.
fn feed(stdin: ChildStdin, input: Receiver<Bytes>) -> anyhow::Result<()> {
    let write = move || {
        let mut stdin = Some(stdin);
        for bytes in input {
            // An empty piece is the end; a rank that reads no more has ended it itself.
            stdin = stdin.filter(|_| !bytes.is_empty());
            stdin = stdin.and_then(|mut pipe| pipe.write_all(&bytes).ok().map(|()| pipe));
            if say(&Report::Taken).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("input".to_owned())
        .spawn(write)
        .context("starting a thread")?;
    Ok(())
}
