use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;

use super::*;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ringway-jobs-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("room for files");
        Self(path)
    }

    /// A socket that answers everybody with these bytes, then closes.
    fn answering(&self, name: &str, bytes: Vec<u8>) {
        let listener = UnixListener::bind(self.0.join(name)).expect("a free name");
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let _asked = stream.read(&mut [0; 4096]);
                let _gone = stream.write_all(&bytes);
            }
        });
    }

    fn telling(&self, name: &str, body: &str) {
        let length = body.len();
        let text = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}");
        self.answering(name, text.into_bytes());
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

fn body(rank: u32) -> String {
    format!(
        "# HELP ringway_info The library; always 1.\n# TYPE ringway_info gauge\nringway_info{{version=\"1\"}} 1\n\
         # HELP ringway_bytes_total Bytes.\n# TYPE ringway_bytes_total counter\n\
         ringway_bytes_total{{communicator=\"0x1\",rank=\"{rank}\"}} {}\n",
        10 * rank
    )
}

fn text(jobs: &Jobs) -> String {
    let mut page = Page::default();
    jobs.write(&mut page);
    page.into_text()
}

#[test]
fn what_processes_tell_becomes_one_text_without_duplicates() {
    let folder = Folder::new("several");
    for rank in 0..5 {
        folder.telling(&format!("node-{rank}.sock"), &body(rank));
    }
    // The same twice, as a second socket of one process would be.
    folder.telling("again.sock", &body(3));
    let jobs = Jobs::ask(&folder.0);
    assert_eq!((jobs.answered, jobs.failed.len()), (6, 0), "{:?}", jobs.failed);
    let text = text(&jobs);
    assert_eq!(text.matches("# TYPE ringway_info gauge").count(), 1);
    assert_eq!(text.matches("\nringway_info{version=\"1\"} 1").count(), 1);
    assert_eq!(text.matches("ringway_bytes_total{").count(), 5);
    assert_eq!(families(&text).unwrap().len(), 2);
}

#[test]
fn no_job_spoils_the_answer_or_speaks_for_the_machine() {
    let folder = Folder::new("hostile");
    folder.telling("good.sock", &body(0));
    folder.telling("forged.sock", "# TYPE ringway_node_net_up gauge\nringway_node_net_up 1\n");
    folder.telling("other.sock", "# TYPE up gauge\nup 1\n");
    folder.telling("broken.sock", "# TYPE ringway_x gauge\nringway_x{a=\"b} 1\n");
    folder.telling("typed.sock", "# TYPE ringway_bytes_total gauge\nringway_bytes_total 1\n");
    folder.answering("binary.sock", vec![0xff; 100]);
    folder.answering("short.sock", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n# T".to_vec());
    folder.answering("refuses.sock", b"HTTP/1.1 404 Not Found\r\n\r\n".to_vec());
    folder.answering("endless.sock", vec![b'x'; 20 << 20]);
    // One that says nothing; one that lets nobody in; one whose process is gone; a link, a file.
    let _silent = UnixListener::bind(folder.0.join("silent.sock")).unwrap();
    drop(UnixListener::bind(folder.0.join("left.sock")).unwrap());
    std::os::unix::fs::symlink(folder.0.join("good.sock"), folder.0.join("link.sock")).unwrap();
    std::fs::write(folder.0.join("file.sock"), "x").unwrap();
    let jobs = Jobs::ask(&folder.0);
    // Whichever of the two types was seen first is the one that counts.
    assert!(jobs.answered == 1 || jobs.answered == 2, "{jobs:?}");
    assert!(jobs.failed.len() >= 8, "{:?}", jobs.failed);
    let told = families(&text(&jobs)).unwrap();
    assert!(
        told.iter().all(|family| ["ringway_info", "ringway_bytes_total"].contains(&&*family.name))
    );
    assert!(!jobs.failed.iter().any(|why| why.contains("left.sock") || why.contains("link.sock")));
}

#[test]
fn no_folder_means_no_jobs() {
    let jobs = Jobs::ask(Path::new("/nonexistent/ringway"));
    assert_eq!((jobs.answered, jobs.failed.len()), (0, 0));
}
