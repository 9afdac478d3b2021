//! Gives the library the name under which programs were linked against it, and a lasting place.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
    // Threads of the library may be at work when a program closes it: it stays where it is.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
