#![allow(unsafe_code, reason = "runs calls on memory that Python gives by address")]
//! Communicators, as Python sees them: addresses are integers, times are seconds.
//!
//! Who calls promises what the library's own functions on addresses ask for: buffers of the right sizes that nobody else
//! touches until the call is over. The package's own layer keeps that promise by holding on to them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use ringway::device::Stream;
use ringway::{Afterwards, DeviceWork, Error, Group, Result};

use crate::arguments::{self, CallArguments, CountsArgument, Settings, duration};
use crate::error::exception;
use crate::waiting::waiting;
use crate::work::{State, Work};

/// Communicators of this process, for its end.
static ALL: Mutex<Vec<Weak<Handle>>> = Mutex::new(Vec::new());

/// One rank's handle of a group of ranks.
#[pyclass(frozen, weakref, module = "ringway._native")]
#[derive(Debug)]
pub(crate) struct Communicator {
    handle: Arc<Handle>,
}

#[derive(Debug)]
struct Handle {
    /// Until it is closed.
    communicator: Mutex<Option<ringway::Communicator>>,
    /// Set before the communicator goes: who calls later is refused, but it can be given up still.
    closed: AtomicBool,
    rank: u32,
    size: u32,
    hosts: Vec<u32>,
    /// A process that was forked has the handle, but not the threads behind it.
    pid: u32,
    /// Calls that are not over, in the background or not.
    pending: Arc<AtomicUsize>,
}

impl Handle {
    fn new(communicator: ringway::Communicator) -> Arc<Self> {
        let handle = Arc::new(Self {
            closed: AtomicBool::new(false),
            rank: communicator.rank(),
            size: communicator.size(),
            hosts: communicator.hosts().to_vec(),
            pid: std::process::id(),
            pending: Arc::default(),
            communicator: Mutex::new(Some(communicator)),
        });
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&handle));
        handle
    }

    fn is_inherited(&self) -> bool {
        self.pid != std::process::id()
    }

    /// The communicator, closed or not.
    fn any(&self) -> Option<ringway::Communicator> {
        if self.is_inherited() {
            return None;
        }
        self.communicator.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The communicator, for a call.
    fn open(&self) -> Result<ringway::Communicator> {
        if self.is_inherited() {
            return Err(Error::usage(format!(
                "this communicator is of process {}, from which this one was forked; make one of its own",
                self.pid
            )));
        }
        let open = if self.closed.load(Ordering::Acquire) { None } else { self.any() };
        open.ok_or_else(|| Error::usage("the communicator is closed; make a new one"))
    }

    fn take(&self) -> Option<ringway::Communicator> {
        self.communicator.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Waits for what is under way and says goodbye.
    fn close(&self) {
        if self.closed.swap(true, Ordering::AcqRel) || self.is_inherited() {
            return;
        }
        if let Some(communicator) = self.any() {
            communicator.drain();
        }
        drop(self.take());
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        let Some(communicator) = self.handle.take() else { return };
        if self.handle.is_inherited() {
            // Its threads are not here, and its goodbye would be the parent's.
            let _kept = std::mem::ManuallyDrop::new(communicator);
            return;
        }
        // The goodbye takes a moment.
        let mut communicator = Some(communicator);
        Python::try_attach(|py| py.detach(|| drop(communicator.take())));
    }
}

/// An id by which ranks find each other; this process serves their meeting.
#[pyfunction]
#[pyo3(signature = (settings=None))]
pub(crate) fn unique_id(py: Python<'_>, settings: Settings) -> PyResult<Bound<'_, PyBytes>> {
    let id = waiting(py, None, || {
        ringway::Communicator::unique_id(&arguments::environment(settings).1)
    })?;
    Ok(PyBytes::new(py, id.as_bytes()))
}

/// Lets this thread wait for any call, where it is one that runs calls in the background and tells of the end of one; says
/// whether it is.
#[pyfunction]
pub(crate) fn hand_over(py: Python<'_>) -> bool {
    py.detach(ringway::hand_over)
}

/// Ends all communicators of this process. One with work under way is given up: it may never end.
#[pyfunction(name = "_close_all")]
pub(crate) fn close_all(py: Python<'_>) {
    let all = std::mem::take(&mut *ALL.lock().unwrap_or_else(PoisonError::into_inner));
    py.detach(|| {
        for handle in all.iter().filter_map(Weak::upgrade) {
            if let Some(communicator) = handle.any()
                && handle.pending.load(Ordering::Acquire) > 0
            {
                communicator.abort("its process ended while work was under way");
            }
            handle.close();
        }
    });
}

impl Communicator {
    fn new(communicator: ringway::Communicator) -> Self {
        Self { handle: Handle::new(communicator) }
    }

    /// Runs `work` on the communicator, without Python's lock.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&ringway::Communicator) -> Result<T> + Send,
    ) -> PyResult<T> {
        let _under_way = UnderWay::new(&self.handle.pending);
        waiting(py, Some(self.handle.rank), || work(&self.handle.open()?))
    }

    /// As [`Communicator::with`], for what makes a new communicator of this one.
    fn deriving(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&ringway::Communicator) -> Result<ringway::Communicator> + Send,
    ) -> PyResult<Self> {
        self.with(py, work).map(Self::new)
    }

    /// Begins background work: `begin` is given what to call when it is over.
    fn begin(
        &self,
        py: Python<'_>,
        (keep, done): (Option<Py<PyAny>>, Option<Py<PyAny>>),
        begin: impl FnOnce(&ringway::Communicator, Ending) -> Result<()> + Send,
    ) -> PyResult<Work> {
        let state = State::keeping(keep);
        let rank = self.handle.rank;
        let under_way = UnderWay::new(&self.handle.pending);
        let ending = Ending { state: Arc::clone(&state), done, rank, under_way };
        self.with(py, |communicator| begin(communicator, ending))?;
        Ok(Work::new(state, rank))
    }
}

/// What happens at the end of background work.
struct Ending {
    state: Arc<State>,
    done: Option<Py<PyAny>>,
    rank: u32,
    under_way: UnderWay,
}

/// One call that is not over.
struct UnderWay(Arc<AtomicUsize>);

impl UnderWay {
    fn new(pending: &Arc<AtomicUsize>) -> Self {
        pending.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(pending))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Ending {
    /// Whoever looks finds it over; what is left is to tell Python, which may call something then.
    fn end(self, outcome: Result<()>) -> Option<Afterwards> {
        let Self { state, done, rank, under_way } = self;
        let told = done.map(|done| (done, outcome.clone()));
        // Whoever waited for it may end the process, which asks whether anything is under way.
        drop(under_way);
        state.end(outcome);
        let (done, outcome) = told?;
        Some(Box::new(move || {
            // At the end of Python nobody is left to be told.
            Python::try_attach(|py| {
                let error = outcome.err().map(|error| exception(py, &error, Some(rank)));
                if let Err(raised) = done.call1(py, (error,)) {
                    raised.write_unraisable(py, Some(done.bind(py)));
                }
                drop(done);
            });
        }))
    }
}

/// A message: whether it is sent, to or from whom, where it is and how long.
type Message = (bool, u32, usize, usize);

fn group<'a>(
    communicator: &'a ringway::Communicator,
    parts: &[Message],
    timeout: Option<f64>,
) -> Result<Group<'a>> {
    let mut group = communicator.group();
    if let Some(timeout) = timeout {
        group = group.deadline(duration(timeout)?);
    }
    for (sends, peer, address, bytes) in parts.iter().copied() {
        let address: *mut u8 = std::ptr::with_exposed_provenance_mut(address);
        if sends {
            // SAFETY: Python's promise, see the module's text.
            unsafe { group.send_raw(address, bytes, peer) }?;
        } else {
            // SAFETY: as above.
            unsafe { group.recv_raw(address, bytes, peer) }?;
        }
    }
    Ok(group)
}

#[pymethods]
impl Communicator {
    /// Joins the job this process was started in. `settings` are laid over the environment's variables.
    #[staticmethod]
    #[pyo3(signature = (settings=None))]
    fn from_env(py: Python<'_>, settings: Settings) -> PyResult<Self> {
        waiting(py, None, || {
            let (environment, _) = arguments::environment(settings);
            ringway::Communicator::from_environment(&environment)
        })
        .map(Self::new)
    }

    /// Joins as `rank` of `size` the communicator that `id` names.
    #[staticmethod]
    #[pyo3(signature = (id, rank, size, settings=None))]
    fn from_unique_id(
        py: Python<'_>,
        id: &[u8],
        rank: u32,
        size: u32,
        settings: Settings,
    ) -> PyResult<Self> {
        waiting(py, Some(rank), || {
            if rank >= size {
                return Err(Error::argument(format!(
                    "rank {rank} of {size} cannot be; ranks count from 0, so it must be less than the size"
                )));
            }
            let id = ringway::UniqueId::from_bytes(id)?;
            let (_, config) = arguments::environment(settings);
            ringway::log::set_thread_rank(rank);
            ringway::Communicator::from_unique_id(&id, rank, size, config)
        })
        .map(Self::new)
    }

    #[getter]
    fn rank(&self) -> u32 {
        self.handle.rank
    }

    #[getter]
    fn size(&self) -> u32 {
        self.handle.size
    }

    /// Calls that are under way, in the background or not.
    #[getter]
    fn pending(&self) -> usize {
        self.handle.pending.load(Ordering::Acquire)
    }

    #[getter]
    fn closed(&self) -> bool {
        self.handle.closed.load(Ordering::Acquire)
    }

    /// Which ranks share memory: those with the same number.
    #[getter]
    fn hosts(&self) -> Vec<u32> {
        self.handle.hosts.clone()
    }

    /// Runs a collective; in place on `output` where `input` is 0. In the background it comes behind everything that was
    /// called before: `keep` is held until it is over, then `done` is called in the background thread with the error, or
    /// None.
    #[pyo3(signature = (collective, data_type, op, count, input, output, root=0, counts=None, scalar=1.0, timeout=None, level=None, background=false, keep=None, done=None))]
    #[expect(clippy::too_many_arguments, reason = "Python's arguments have names")]
    fn call(
        &self,
        py: Python<'_>,
        collective: u8,
        data_type: u8,
        op: u8,
        count: u64,
        input: usize,
        output: usize,
        root: u32,
        counts: Option<CountsArgument>,
        scalar: f64,
        timeout: Option<f64>,
        level: Option<String>,
        background: bool,
        keep: Option<Py<PyAny>>,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Option<Work>> {
        let arguments = CallArguments {
            collective,
            data_type,
            op,
            count,
            root,
            counts,
            scalar,
            timeout,
            level,
        };
        if background {
            let begin = |communicator: &ringway::Communicator, ending: Ending| {
                let call = arguments.call()?;
                let input = std::ptr::with_exposed_provenance(input);
                let output = std::ptr::with_exposed_provenance_mut(output);
                // SAFETY: Python's promise, see the module's text; `keep` is held until the end.
                unsafe {
                    communicator.start_at(&call, input, output, |outcome| ending.end(outcome))
                }
            };
            return self.begin(py, (keep, done), begin).map(Some);
        }
        self.with(py, |communicator| {
            let call = arguments.call()?;
            let input = std::ptr::with_exposed_provenance(input);
            let output = std::ptr::with_exposed_provenance_mut(output);
            // SAFETY: Python's promise, see the module's text.
            unsafe { communicator.call_at(&call, input, output) }
        })?;
        Ok(None)
    }

    /// Sends `bytes` bytes to a rank.
    #[pyo3(signature = (address, bytes, to, timeout=None))]
    fn send(
        &self,
        py: Python<'_>,
        address: usize,
        bytes: usize,
        to: u32,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        self.messages(py, vec![(true, to, address, bytes)], timeout)
    }

    /// Receives exactly `bytes` bytes from a rank.
    #[pyo3(signature = (address, bytes, source, timeout=None))]
    fn recv(
        &self,
        py: Python<'_>,
        address: usize,
        bytes: usize,
        source: u32,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        self.messages(py, vec![(false, source, address, bytes)], timeout)
    }

    /// Messages `(sends, peer, address, bytes)`, all at once.
    #[pyo3(signature = (parts, timeout=None))]
    fn messages(&self, py: Python<'_>, parts: Vec<Message>, timeout: Option<f64>) -> PyResult<()> {
        self.with(py, |communicator| group(communicator, &parts, timeout)?.run())
    }

    /// As `messages`, in the background; see `call`.
    #[pyo3(signature = (parts, timeout=None, keep=None, done=None))]
    fn start_messages(
        &self,
        py: Python<'_>,
        parts: Vec<Message>,
        timeout: Option<f64>,
        keep: Option<Py<PyAny>>,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Work> {
        self.begin(py, (keep, done), |communicator, ending| {
            let group = group(communicator, &parts, timeout)?;
            // SAFETY: Python's promise, see the module's text; `keep` is held until the end.
            unsafe { group.start(|outcome| ending.end(outcome)) }
        })
    }

    /// Lets calls be made on GPU memory. All ranks call it.
    fn attach_gpu(&self, py: Python<'_>, ordinal: Option<i32>) -> PyResult<()> {
        self.with(py, |communicator| communicator.attach_gpu(ordinal))
    }

    /// How ranks reach each other's GPU memory.
    #[getter]
    fn gpu_path(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.with(py, |communicator| Ok(communicator.gpu_path()))
    }

    /// Why they do not.
    #[getter]
    fn gpu_refusal(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.with(py, |communicator| Ok(communicator.gpu_refusal()))
    }

    /// Puts calls and messages on GPU memory on a stream; see `ringway._native` for their form.
    fn enqueue(
        &self,
        py: Python<'_>,
        streams: Vec<usize>,
        parts: Vec<Bound<'_, PyTuple>>,
    ) -> PyResult<()> {
        let mut work = Vec::with_capacity(parts.len());
        for part in &parts {
            work.push(DevicePart::read(part)?);
        }
        self.with(py, |communicator| {
            let work = work.into_iter().map(|part| part.work(communicator));
            let work = work.collect::<Result<Vec<_>>>()?;
            let handle =
                |stream: usize| Stream::from_handle(std::ptr::with_exposed_provenance_mut(stream));
            let streams: Vec<Stream> = streams.into_iter().map(handle).collect();
            // SAFETY: Python's promise: device memory of the right sizes that is left alone until the stream has come
            // past the calls, and streams that are alive.
            unsafe { communicator.enqueue(&streams, &work) }
        })
    }

    /// Ranks with the same color form a new communicator, ordered by key, then rank. None without a color.
    fn split(&self, py: Python<'_>, color: Option<u32>, key: i32) -> PyResult<Option<Self>> {
        Ok(self.with(py, |communicator| communicator.split(color, key))?.map(Self::new))
    }

    /// A second communicator of the same ranks.
    fn dup(&self, py: Python<'_>) -> PyResult<Self> {
        self.deriving(py, ringway::Communicator::dup)
    }

    /// A communicator of the ranks that are left without the `excluded`.
    fn shrink(&self, py: Python<'_>, excluded: Vec<u32>) -> PyResult<Self> {
        self.deriving(py, |communicator| communicator.shrink(&excluded))
    }

    /// A communicator of the same size, with new processes in the seats of the `excluded`.
    #[pyo3(signature = (excluded, id))]
    fn replace(&self, py: Python<'_>, excluded: Vec<u32>, id: Option<&[u8]>) -> PyResult<Self> {
        self.deriving(py, |communicator| {
            communicator.replace(&excluded, arguments::id(id)?.as_ref())
        })
    }

    /// A communicator of these ranks and of new ones up to `size`.
    #[pyo3(signature = (id, size))]
    fn grow(&self, py: Python<'_>, id: Option<&[u8]>, size: u32) -> PyResult<Self> {
        self.deriving(py, |communicator| communicator.grow(arguments::id(id)?.as_ref(), size))
    }

    /// Gives the communicator up: calls under way return with the error, here and elsewhere. From any thread.
    fn abort(&self, py: Python<'_>, reason: String) {
        if let Some(communicator) = self.handle.any() {
            py.detach(|| {
                communicator.abort(&reason);
                drop(communicator);
            });
        }
    }

    /// Raises the error that all ranks agreed on, if there is one.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, ringway::Communicator::check)
    }

    /// Waits for what is under way, says goodbye and gives everything back.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        waiting(py, Some(self.handle.rank), || {
            self.handle.close();
            Ok(())
        })
    }

    /// The links made so far.
    fn links<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let links = self.with(py, |communicator| Ok(communicator.links()))?;
        let link = |link: ringway::LinkDescription| {
            let dict = PyDict::new(py);
            dict.set_item("peer", link.peer)?;
            dict.set_item("transport", link.transport)?;
            dict.set_item("detail", link.detail)?;
            dict.set_item("reason", link.reason)?;
            Ok(dict)
        };
        links.into_iter().map(link).collect()
    }

    /// What carries bytes to a rank.
    fn carrier(&self, py: Python<'_>, peer: u32) -> PyResult<&'static str> {
        self.with(py, |communicator| {
            if peer >= communicator.size() {
                let last = communicator.size() - 1;
                return Err(Error::argument(format!(
                    "rank {peer} does not exist; ranks are 0 to {last}"
                )));
            }
            Ok(communicator.carrier(peer))
        })
    }

    /// Rank, host and process of every rank.
    fn identities<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let all = self.with(py, |communicator| Ok(communicator.identities()))?;
        let identity = |one: ringway::error::RankIdentity| {
            let dict = PyDict::new(py);
            dict.set_item("rank", one.rank)?;
            dict.set_item("host", one.host)?;
            dict.set_item("pid", one.pid)?;
            Ok(dict)
        };
        all.into_iter().map(identity).collect()
    }

    /// Writes what this rank did last to a file.
    fn write_trace(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.with(py, |communicator| communicator.write_trace(&path))
    }

    fn __repr__(&self) -> String {
        let Handle { rank, size, .. } = &*self.handle;
        let state = if self.closed() { " closed" } else { "" };
        format!("<ringway.Communicator rank {rank} of {size}{state}>")
    }
}

/// A call or message on GPU memory, as Python has it.
#[derive(Debug)]
enum DevicePart {
    Call(CallArguments, usize, usize),
    Message(bool, u32, usize, usize),
}

impl DevicePart {
    fn read(part: &Bound<'_, PyTuple>) -> PyResult<Self> {
        let word: String = part.get_item(0)?.extract()?;
        if word != "call" {
            let (_, peer, address, bytes): (String, u32, usize, usize) = part.extract()?;
            return match word.as_str() {
                "send" => Ok(Self::Message(true, peer, address, bytes)),
                "recv" => Ok(Self::Message(false, peer, address, bytes)),
                _ => Err(PyTypeError::new_err(format!(
                    "{word:?} is no part of a group; it is \"call\", \"send\" or \"recv\""
                ))),
            };
        }
        type Words = (String, u8, u8, u8, u64, usize, usize, u32, Option<CountsArgument>, f64);
        let (_, collective, data_type, op, count, input, output, root, counts, scalar): Words =
            part.extract()?;
        let arguments = CallArguments {
            collective,
            data_type,
            op,
            count,
            root,
            counts,
            scalar,
            timeout: None,
            level: None,
        };
        Ok(Self::Call(arguments, input, output))
    }

    /// The library's part, of `communicator`; in place where a call needs an input and has none.
    fn work(self, communicator: &ringway::Communicator) -> Result<DeviceWork> {
        let (rank, size) = (communicator.rank(), communicator.size());
        Ok(match self {
            Self::Call(arguments, mut input, mut output) => {
                let call = arguments.call()?;
                if input == 0 && call.input_bytes(rank, size)? > 0 {
                    let offsets = call.in_place(rank, size)?.ok_or_else(|| {
                        let collective = call.collective;
                        Error::usage(format!(
                            "{collective} has no form in place on GPU memory; give it an output of its own"
                        ))
                    })?;
                    (input, output) = (output + offsets.0, output + offsets.1);
                }
                DeviceWork::Collective {
                    call,
                    input: std::ptr::with_exposed_provenance(input),
                    output: std::ptr::with_exposed_provenance_mut(output),
                    scalar: None,
                }
            }
            Self::Message(true, peer, address, bytes) => DeviceWork::Send {
                peer,
                address: std::ptr::with_exposed_provenance(address),
                bytes,
            },
            Self::Message(false, peer, address, bytes) => DeviceWork::Receive {
                peer,
                address: std::ptr::with_exposed_provenance_mut(address),
                bytes,
            },
        })
    }
}
