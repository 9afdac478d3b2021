//! RDMA: reliable connections over InfiniBand and RoCE.

pub(crate) mod adapter;
mod arrive;
mod depart;
mod flow;
mod foreign;
mod keeper;
mod monitor;
mod near;
mod paths;
mod place;
mod rail;
pub(crate) mod region;
pub(crate) mod register;
pub(crate) mod select;
mod side;
pub(crate) mod stream;
mod wire;

/// Words that a peer may say, in pieces: what is one says the same when it is said again.
#[cfg(fuzzing)]
pub(crate) fn words(bytes: &[u8]) {
    let mut reader = wire::Reader::default();
    for piece in bytes.chunks(1 + bytes.len() % 29) {
        reader.feed(piece);
        loop {
            match reader.next() {
                Ok(Some(word)) => {
                    let (mut again, said) = (wire::Reader::default(), word.encode());
                    again.feed(&said);
                    // What is no text comes back as one, which may be longer than a word can be.
                    if said.len() < wire::BODY_MOST {
                        assert_eq!(again.next(), Ok(Some(word)));
                    }
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}
