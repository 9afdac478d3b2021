//! Settings, as programs may ask for them.

use std::ffi::{c_char, c_int, c_void};

use super::{exports, exports_plain};
use crate::param;
use crate::raw::{Out, Room, Text};
use crate::types::Code;

macro_rules! numbers {
    ($($name:ident / $twin:ident $type:ty;)*) => {$(
        exports! {
            fn $name / $twin(handle: *const c_void, out: Out<$type>) {
                out.put("out", param::number::<$type>(handle.addr())?)?;
                Ok(Code::Success)
            }
        }
    )*};
}

numbers! {
    ncclParamGetI8 / pncclParamGetI8 i8;
    ncclParamGetI16 / pncclParamGetI16 i16;
    ncclParamGetI32 / pncclParamGetI32 i32;
    ncclParamGetI64 / pncclParamGetI64 i64;
    ncclParamGetU8 / pncclParamGetU8 u8;
    ncclParamGetU16 / pncclParamGetU16 u16;
    ncclParamGetU32 / pncclParamGetU32 u32;
    ncclParamGetU64 / pncclParamGetU64 u64;
}

exports! {
    fn ncclParamBind / pncclParamBind(out: Out<*const c_void>, key: Text) {
        out.check("out")?;
        let handle = param::bind(key.read())?;
        out.put("out", std::ptr::without_provenance(handle))?;
        Ok(Code::Success)
    }

    fn ncclParamGetStr / pncclParamGetStr(handle: *const c_void, out: Out<*const c_char>) {
        out.check("out")?;
        out.put("out", param::text(handle.addr())?)?;
        Ok(Code::Success)
    }

    fn ncclParamGet / pncclParamGet(
        handle: *const c_void, out: Room, room: c_int, length: Out<c_int>,
    ) {
        let value = param::bytes(handle.addr(), room)?;
        out.fill(&value)?;
        if !length.is_null() {
            length.put("len", c_int::try_from(value.len()).unwrap_or(c_int::MAX))?;
        }
        Ok(Code::Success)
    }

    fn ncclParamGetParameter / pncclParamGetParameter(
        key: Text, value: Out<*const c_char>, length: Out<c_int>,
    ) {
        value.check("value")?;
        length.check("valueLen")?;
        let (text, bytes) = param::by_key(key.read())?;
        value.put("value", text)?;
        length.put("valueLen", bytes)?;
        Ok(Code::Success)
    }

    fn ncclParamGetAllParameterKeys / pncclParamGetAllParameterKeys(
        table: Out<*const *const c_char>, length: Out<c_int>,
    ) {
        table.check("table")?;
        length.check("tableLen")?;
        let (keys, count) = param::keys();
        table.put("table", keys)?;
        length.put("tableLen", count)?;
        Ok(Code::Success)
    }
}

exports_plain! {
    fn ncclParamDumpAll / pncclParamDumpAll() => param::dump();
}
