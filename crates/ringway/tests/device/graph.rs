#![allow(unsafe_code, reason = "calls functions of the driver that the library does not use")]
//! A program's own stream, and graphs of what is put on it.

use std::ffi::c_void;
use std::ptr::null_mut;

use ringway::device::Stream;

use crate::driver::call;
use crate::world::config;

/// A stream of a GPU, whose context is current in this thread since.
pub(crate) struct OwnStream {
    pub(crate) cuda: libloading::Library,
    pub(crate) handle: *mut c_void,
}

/// What was put on a stream, to be put there again.
pub(crate) struct Graph<'a> {
    stream: &'a OwnStream,
    handle: *mut c_void,
}

impl OwnStream {
    /// One of the first GPU.
    pub(crate) fn new() -> Self {
        Self::of(0)
    }

    pub(crate) fn of(ordinal: i32) -> Self {
        let driver = config().and_then(|config| config.cuda_library);
        // SAFETY: the driver, which the library has opened already.
        let cuda =
            unsafe { libloading::Library::new(driver.unwrap_or_else(|| "libcuda.so.1".into())) }
                .unwrap();
        let (mut context, mut handle): (*mut c_void, *mut c_void) = (null_mut(), null_mut());
        assert_eq!(
            call!(cuda, cuDevicePrimaryCtxRetain(&raw mut context => *mut _, ordinal => i32)),
            0
        );
        assert_eq!(call!(cuda, cuCtxSetCurrent(context => *mut c_void)), 0);
        assert_eq!(call!(cuda, cuStreamCreate(&raw mut handle => *mut _, 1 => u32)), 0);
        Self { cuda, handle }
    }

    pub(crate) fn stream(&self) -> Stream {
        Stream::from_handle(self.handle)
    }

    pub(crate) fn wait(&self) {
        assert_eq!(call!(self.cuda, cuStreamSynchronize(self.handle => *mut c_void)), 0);
    }

    /// Captures what `body` puts on the stream.
    pub(crate) fn capture(&self, body: impl FnOnce()) -> Graph<'_> {
        self.capture_by(1, body)
    }

    /// The same, in the mode that is a program's if it asks for no other: it forbids other threads things too.
    pub(crate) fn capture_for_all(&self, body: impl FnOnce()) -> Graph<'_> {
        self.capture_by(0, body)
    }

    fn capture_by(&self, mode: i32, body: impl FnOnce()) -> Graph<'_> {
        let Self { cuda, handle: stream } = self;
        assert_eq!(call!(cuda, cuStreamBeginCapture_v2(*stream => *mut c_void, mode => i32)), 0);
        body();
        let (mut graph, mut handle): (*mut c_void, *mut c_void) = (null_mut(), null_mut());
        let ended =
            call!(cuda, cuStreamEndCapture(*stream => *mut c_void, &raw mut graph => *mut _));
        assert_eq!(ended, 0);
        let made = call!(cuda, cuGraphInstantiateWithFlags(&raw mut handle => *mut _, graph => *mut c_void, 0 => u64));
        assert_eq!(made, 0);
        Graph { stream: self, handle }
    }
}

impl Graph<'_> {
    /// Replays it some times, and waits.
    pub(crate) fn replay(&self, times: usize) {
        let OwnStream { cuda, handle: stream } = self.stream;
        for _ in 0..times {
            let launched =
                call!(cuda, cuGraphLaunch(self.handle => *mut c_void, *stream => *mut c_void));
            assert_eq!(launched, 0);
        }
        self.stream.wait();
    }
}
