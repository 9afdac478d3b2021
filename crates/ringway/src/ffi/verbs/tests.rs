//! Verbs without devices. What needs devices is in `machine.rs`.

use super::*;

mod machine;

#[test]
fn without_the_library_the_error_names_its_packages() {
    let error = VerbsError::from(open(NAME, &["libibverbs-of-no-machine.so.1"]).unwrap_err());
    let text = error.to_string();
    for word in ["libibverbs is not on this machine", "ibverbs-providers", "RHEL"] {
        assert!(text.contains(word), "{text}");
    }
    assert_eq!(error.code(), None);
}

#[test]
fn a_failed_call_says_the_device_the_cause_and_the_fix() {
    let error = VerbsError::call("ibv_open_device", "mlx5_0", libc::EACCES, "; try this");
    let text = error.to_string();
    assert!(text.starts_with("ibv_open_device on mlx5_0 failed: Permission denied"), "{text}");
    assert!(text.ends_with("; try this"), "{text}");
    assert_eq!(error.code(), Some(libc::EACCES));
}

#[test]
fn addresses_are_read_and_shown() {
    let mut mapped = [0; 16];
    mapped[10..].copy_from_slice(&[0xff, 0xff, 10, 77, 0, 1]);
    let gid = Gid(mapped);
    assert_eq!(gid.ipv4(), Some([10, 77, 0, 1].into()));
    assert_eq!(gid.to_string(), "::ffff:10.77.0.1");
    assert!(Gid::default().is_empty());
    let mut prefix = [0; 16];
    prefix[..2].copy_from_slice(&[0xfe, 0x80]);
    assert!(Gid(prefix).is_empty());
    assert!(!gid.is_empty());
}

#[test]
fn mtus_are_the_headers() {
    let bytes: Vec<u32> = (0..7).filter_map(Mtu::from_number).map(Mtu::bytes).collect();
    assert_eq!(bytes, [256, 512, 1024, 2048, 4096]);
}

#[test]
fn memory_keeps_bytes_and_its_bounds() {
    let memory = Memory::new(5000).unwrap();
    assert_eq!(memory.bytes() % rustix::param::page_size(), 0);
    memory.write(4998, &[1, 2]);
    let mut found = [9; 3];
    memory.read(4997, &mut found);
    assert_eq!(found, [0, 1, 2]);
    assert_eq!(memory.byte(4999).load(std::sync::atomic::Ordering::Relaxed), 2);
    let end = memory.bytes();
    let outside = std::panic::catch_unwind(|| memory.write(end - 1, &[0; 2]));
    assert!(outside.is_err());
}
