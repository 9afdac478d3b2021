//! The functions of nccl.h, each with its twin: `ncclX` and `pncclX` do the same, so that a tool may
//! put its own `ncclX` before ours and call on to `pncclX`.
//!
//! *Invariant*: bodies hold no logic. They name arguments, and call on.

mod collective;
mod communicator;
mod device;
mod group;
mod memory;
mod param;
mod query;

/// Exports functions that return an `ncclResult_t` under both their names.
///
/// Neither calls the other: the name it would call by may be a tool's by then.
macro_rules! exports {
    ($(
        $(#[$doc:meta])*
        fn $name:ident / $twin:ident ( $($argument:ident : $type:ty),* $(,)? ) $body:block
    )*) => {$(
        $(#[$doc])*
        const _: () = {
            #[allow(clippy::too_many_arguments, reason = "they are C's")]
            fn call($($argument: $type),*) -> std::ffi::c_int {
                $crate::boundary::guard(
                    stringify!($name),
                    move || -> ringway::Result<$crate::types::Code> { $body },
                )
            }

            #[allow(unsafe_code, non_snake_case, clippy::too_many_arguments, reason = "they are C's")]
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $type),*) -> std::ffi::c_int {
                call($($argument),*)
            }

            #[allow(unsafe_code, non_snake_case, clippy::too_many_arguments, reason = "they are C's")]
            #[unsafe(no_mangle)]
            extern "C" fn $twin($($argument: $type),*) -> std::ffi::c_int {
                call($($argument),*)
            }
        };
    )*};
}

/// Exports functions that return something else under both their names; they cannot fail.
macro_rules! exports_plain {
    ($(
        $(#[$doc:meta])*
        fn $name:ident / $twin:ident ( $($argument:ident : $type:ty),* $(,)? )
            $(-> $result:ty, or $otherwise:expr)? => $body:expr;
    )*) => {$(
        $(#[$doc])*
        const _: () = {
            fn call($($argument: $type),*) $(-> $result)? {
                let body = move || ringway::Result::Ok($body);
                #[allow(clippy::unused_unit, reason = "where it returns nothing")]
                $crate::boundary::contain(stringify!($name), body).unwrap_or_else(|error| {
                    $crate::boundary::report(&error);
                    $($otherwise)?
                })
            }

            #[allow(unsafe_code, non_snake_case, clippy::too_many_arguments, reason = "they are C's")]
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $type),*) $(-> $result)? {
                call($($argument),*)
            }

            #[allow(unsafe_code, non_snake_case, clippy::too_many_arguments, reason = "they are C's")]
            #[unsafe(no_mangle)]
            extern "C" fn $twin($($argument: $type),*) $(-> $result)? {
                call($($argument),*)
            }
        };
    )*};
}

use {exports, exports_plain};
