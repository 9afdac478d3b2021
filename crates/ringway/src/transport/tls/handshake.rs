//! The TLS handshake of a lane: both ends hold keys that only they can have made, and show them.
//!
//! It comes after the handshake by the job's secret, on the connection that one let in, so that a stranger costs no public-key
//! arithmetic and the number of handshakes under way stays bounded. That handshake leaves a key which depends on the
//! secret, both nonces, and who talks to whom about what; two Ed25519 keys are made from it, one for each side, and shown
//! as raw public keys (RFC 7250). No certificates, no files, no names, no clock.
//!
//! ```text
//! dialer                                       acceptor
//!   │ ◄────── handshake by the secret ──────►    │
//!   │   ClientHello                              │
//!   ├────────────────────────────────────────────►
//!   │   ServerHello … key of the acceptor        │   the dialer compares it
//!   ◄────────────────────────────────────────────┤
//!   │   key of the dialer                        │   the acceptor compares it
//!   ├────────────────────────────────────────────►
//!   │   'K', encrypted                           │   the dialer knows that it is in
//!   ◄────────────────────────────────────────────┤
//! ```
//!
//! *Invariant:* a lane is secured with exactly the peer that proved the secret on it, or not at all: keys of one
//! connection fit no other, and neither side goes on with less.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring};
use rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, Connection,
    DigitallySignedStruct, DistinguishedName, ServerConfig, ServerConnection, SignatureScheme,
};
use thiserror::Error as ThisError;

use super::Wire;

/// The longest a handshake may take.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

/// What the acceptor says, encrypted, when the dialer is in.
const VERDICT: u8 = b'K';

/// An Ed25519 key in PKCS #8 up to its 32 bytes (RFC 8410).
const PKCS8_HEAD: [u8; 16] =
    [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// Which end of a lane this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Dialer,
    Acceptor,
}

/// What the keys of a lane are made from: a secret for each side, known to both and to nobody else.
#[derive(Clone)]
pub(crate) struct LaneSecrets {
    pub(crate) dialer: [u8; 32],
    pub(crate) acceptor: [u8; 32],
}

impl fmt::Debug for LaneSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LaneSecrets(…)")
    }
}

/// A connection on which the handshake is over.
pub(crate) struct Secured(Connection);

impl fmt::Debug for Secured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secured(…)")
    }
}

impl Secured {
    pub(super) fn into_inner(self) -> Connection {
        self.0
    }
}

/// Why a lane was not secured.
#[derive(Clone, Debug, ThisError, PartialEq, Eq)]
pub(crate) enum Refusal {
    #[error(
        "the TLS handshake is not over after {} s: the peer is stopped or overloaded, or something between the hosts \
         holds bytes back",
        TIMEOUT.as_secs()
    )]
    Timeout,
    #[error(
        "the connection was closed in the TLS handshake: the peer has ended, or something between the hosts lets no \
         TLS pass"
    )]
    Closed,
    #[error(
        "the TLS key of the other end is not this connection's: the job's secret was proved, but somebody between the hosts \
         has taken the peer's place since"
    )]
    OtherKey,
    #[error("the TLS handshake failed: {0}; look at what stands between the hosts")]
    Failed(String),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof => {
                Self::Closed
            }
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl From<rustls::Error> for Refusal {
    fn from(error: rustls::Error) -> Self {
        use AlertDescription::{AccessDenied, CertificateUnknown, DecryptError};
        match error {
            rustls::Error::InvalidCertificate(_)
            | rustls::Error::AlertReceived(AccessDenied | CertificateUnknown | DecryptError) => {
                Self::OtherKey
            }
            other => Self::Failed(other.to_string()),
        }
    }
}

/// Secures a connection that the job's secret let in. The socket does not block; the other end does the same.
///
/// # Errors
/// When the other end is another, or does not do its part before the deadline.
pub(crate) fn secure(
    socket: &TcpStream,
    role: Role,
    secrets: &LaneSecrets,
    deadline: Instant,
) -> Result<Secured, Refusal> {
    secure_by(socket, role, (secrets, provider()), deadline.min(Instant::now() + TIMEOUT))
}

/// As [`secure`], with what a provider offers.
pub(super) fn secure_by(
    socket: &TcpStream,
    role: Role,
    (secrets, provider): (&LaneSecrets, CryptoProvider),
    deadline: Instant,
) -> Result<Secured, Refusal> {
    let tls = connection(role, secrets, provider)?;
    let mut meeting = Meeting { tls, socket, deadline };
    while meeting.tls.is_handshaking() {
        meeting.flush()?;
        if meeting.tls.is_handshaking() {
            meeting.hear()?;
        }
    }
    match role {
        Role::Acceptor => meeting.tls.writer().write_all(&[VERDICT])?,
        Role::Dialer => meeting.await_verdict()?,
    }
    meeting.flush()?;
    Ok(Secured(meeting.tls))
}

/// A handshake under way.
struct Meeting<'a> {
    tls: Connection,
    socket: &'a TcpStream,
    deadline: Instant,
}

impl Meeting<'_> {
    /// Sends all there is to send.
    fn flush(&mut self) -> Result<(), Refusal> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut Wire(self.socket)) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::OUT)?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Waits for bytes, and takes them in.
    fn hear(&mut self) -> Result<(), Refusal> {
        loop {
            match self.tls.read_tls(&mut Wire(self.socket)) {
                Ok(0) => return Err(Refusal::Closed),
                Ok(_) => break,
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::IN)?,
                Err(error) => return Err(error.into()),
            }
        }
        let outcome = self.tls.process_new_packets();
        outcome.map(|_| ()).map_err(|error| {
            // The other end is told why, if that goes out.
            let _told = self.tls.write_tls(&mut Wire(self.socket));
            error.into()
        })
    }

    fn await_verdict(&mut self) -> Result<(), Refusal> {
        self.flush()?;
        let mut verdict = [0];
        loop {
            match self.tls.reader().read(&mut verdict) {
                Ok(1) if verdict == [VERDICT] => return Ok(()),
                Ok(0) => return Err(Refusal::Closed),
                Ok(_) => return Err(Refusal::Failed("the other end says something else".into())),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.hear()?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn wait(&self, flags: PollFlags) -> Result<(), Refusal> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Refusal::Timeout);
        }
        let limit = Timespec::try_from(left).map_err(|_| Refusal::Timeout)?;
        let mut fds = [PollFd::from_borrowed_fd(self.socket.as_fd(), flags)];
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(io::Error::from(errno).into()),
        }
    }
}

/// What is offered, and nothing else: both ends are of one build.
pub(super) fn provider() -> CryptoProvider {
    CryptoProvider {
        cipher_suites: vec![ring::cipher_suite::TLS13_AES_128_GCM_SHA256],
        kx_groups: vec![ring::kx_group::X25519],
        ..ring::default_provider()
    }
}

/// One end of a connection before its handshake.
fn connection(
    role: Role,
    secrets: &LaneSecrets,
    provider: CryptoProvider,
) -> Result<Connection, rustls::Error> {
    let (own, theirs) = match role {
        Role::Dialer => (&secrets.dialer, &secrets.acceptor),
        Role::Acceptor => (&secrets.acceptor, &secrets.dialer),
    };
    let own = signing_key(own)?;
    let shown = CertificateDer::from(public_key(&*own)?);
    let own = Arc::new(CertifiedKey::new(vec![shown], own));
    let expected = Arc::new(Expected {
        key: public_key(&*signing_key(theirs)?)?,
        algorithms: provider.signature_verification_algorithms,
    });
    let (provider, versions) = (Arc::new(provider), &[&rustls::version::TLS13]);
    Ok(match role {
        Role::Dialer => {
            let mut config = ClientConfig::builder_with_provider(provider)
                .with_protocol_versions(versions)?
                .dangerous()
                .with_custom_certificate_verifier(expected)
                .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(own)));
            config.resumption = Resumption::disabled();
            config.enable_sni = false;
            let name = ServerName::try_from("ringway")
                .map_err(|error| rustls::Error::General(error.to_string()))?;
            ClientConnection::new(Arc::new(config), name)?.into()
        }
        Role::Acceptor => {
            let mut config = ServerConfig::builder_with_provider(provider)
                .with_protocol_versions(versions)?
                .with_client_cert_verifier(expected)
                .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(own)));
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
            ServerConnection::new(Arc::new(config))?.into()
        }
    })
}

fn signing_key(seed: &[u8; 32]) -> Result<Arc<dyn SigningKey>, rustls::Error> {
    let encoded = [&PKCS8_HEAD[..], seed].concat();
    ring::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(encoded))
}

fn public_key(key: &dyn SigningKey) -> Result<Vec<u8>, rustls::Error> {
    let shown = key.public_key().map(|key| key.to_vec());
    shown.ok_or_else(|| rustls::Error::General("an Ed25519 key shows no public key".to_owned()))
}

/// The one key that the other end may show.
#[derive(Debug)]
struct Expected {
    key: Vec<u8>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Expected {
    fn compare(&self, shown: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        if shown.as_ref() == self.key {
            return Ok(());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.compare(shown)?;
        let key = SubjectPublicKeyInfoDer::from(shown.as_ref());
        rustls::crypto::verify_tls13_signature_with_raw_key(
            message,
            &key,
            signature,
            &self.algorithms,
        )
    }
}

fn no_older_version() -> Result<HandshakeSignatureValid, rustls::Error> {
    Err(rustls::Error::General("TLS 1.3 and nothing older".to_owned()))
}

impl ServerCertVerifier for Expected {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.compare(shown).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _shown: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        no_older_version()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verify(message, shown, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Expected {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.compare(shown).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _shown: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        no_older_version()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verify(message, shown, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
