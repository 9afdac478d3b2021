//! Where metrics of this process's communicators are served: one place for all that ask for the same.
//!
//! It is there for as long as communicators are; who answers is [`crate::exposition`].

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::{Metered, text};
use crate::config::MetricsPlace;
use crate::exposition::{self, Listener};

/// Ports that are tried, from the one asked for on: as many processes of a host can be watched.
const PORTS: u16 = 256;

/// The servers of this process, by the place asked for.
static SERVERS: Mutex<Vec<(MetricsPlace, Weak<Server>)>> = Mutex::new(Vec::new());

type All = Arc<Mutex<Vec<Weak<Metered>>>>;

/// A place at which metrics are served.
#[derive(Debug)]
pub(super) struct Server {
    all: All,
    address: String,
    /// What is left of it in the file system.
    path: Option<PathBuf>,
    /// Who answers.
    answers: Option<exposition::Server>,
}

impl Server {
    /// The one at this place, which is made where there is none.
    pub(super) fn at(place: &MetricsPlace) -> io::Result<Arc<Self>> {
        let mut servers = SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
        servers.retain(|(_, server)| server.strong_count() > 0);
        let there = servers.iter().filter(|(other, _)| other == place);
        if let Some(server) = there.filter_map(|(_, server)| server.upgrade()).next() {
            return Ok(server);
        }
        let server = Arc::new(Self::open(place)?);
        servers.push((place.clone(), Arc::downgrade(&server)));
        Ok(server)
    }

    fn open(place: &MetricsPlace) -> io::Result<Self> {
        let (listener, address, path) = match place {
            MetricsPlace::Tcp(address) => {
                let listener = listen(address.ip(), address.port())?;
                let address: SocketAddr = listener.local_addr()?;
                (Listener::Tcp(listener), format!("http://{address}/metrics"), None)
            }
            MetricsPlace::Unix(pattern) => {
                let path = PathBuf::from(crate::log::expanded(pattern));
                let address = format!("unix:{}", path.display());
                (Listener::Unix(listen_unix(&path)?), address, Some(path))
            }
        };
        let all = All::default();
        let told = Arc::clone(&all);
        let answers = exposition::Server::open(listener, move || tell(&told))?;
        Ok(Self { all, address, path, answers: Some(answers) })
    }

    /// Where it is, for people.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Tells also of this communicator.
    pub(super) fn add(&self, metered: &Arc<Metered>) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(metered));
    }
}

fn tell(all: &All) -> String {
    let all = all.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let all: Vec<Arc<Metered>> = all.iter().filter_map(Weak::upgrade).collect();
    text::text(&all)
}

/// Lets go of a server; nobody opens the same place before it has ended, if this was the last to need it.
pub(super) fn release(server: Arc<Server>) {
    let _servers = SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
    drop(server);
}

impl Drop for Server {
    fn drop(&mut self) {
        self.answers = None;
        if let Some(path) = &self.path {
            let _gone = std::fs::remove_file(path);
        }
    }
}

/// Listens at the first port that is free.
fn listen(address: IpAddr, port: u16) -> io::Result<TcpListener> {
    let mut taken = None;
    for port in (port..=u16::MAX).take(usize::from(PORTS)) {
        match TcpListener::bind((address, port)) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == ErrorKind::AddrInUse => taken = Some(error),
            Err(error) => return Err(error),
        }
    }
    let why = format!("{PORTS} ports of {address} from {port} on are taken");
    Err(taken
        .map_or_else(|| io::Error::other(why.clone()), |e| io::Error::new(e.kind(), why.clone())))
}

/// Listens at a socket that this user alone may open.
fn listen_unix(path: &Path) -> io::Result<UnixListener> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let listener = match UnixListener::bind(path) {
        // One that nobody listens at was left by a process that is gone.
        Err(error) if error.kind() == ErrorKind::AddrInUse && is_left(path) => {
            std::fs::remove_file(path).map_err(named)?;
            UnixListener::bind(path).map_err(named)?
        }
        outcome => outcome.map_err(named)?,
    };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(named)?;
    Ok(listener)
}

/// Whether a socket has nobody behind it.
fn is_left(path: &Path) -> bool {
    UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}
