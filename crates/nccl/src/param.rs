//! Settings by name, with the values in force: what `ringway env` lists.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::sync::LazyLock;

use ringway::config::{Config, Setting, parse_bytes};
use ringway::{Error, Result};

use crate::config;

/// The names, in the order of the settings; a handle is one more than an index here.
static NAMES: LazyLock<Vec<CString>> = LazyLock::new(|| {
    let names = Config::default().settings().into_iter().map(|setting| setting.name);
    names.filter_map(|name| CString::new(name).ok()).collect()
});

thread_local! {
    /// What `ncclParamGetStr` gave this thread last.
    static TEXT: RefCell<CString> = RefCell::default();
    /// What `ncclParamGetParameter` gave this thread last.
    static VALUE: RefCell<CString> = RefCell::default();
    /// What `ncclParamGetAllParameterKeys` gave this thread last.
    static KEYS: RefCell<Vec<*const c_char>> = const { RefCell::new(Vec::new()) };
}

fn setting(handle: usize) -> Result<Setting> {
    let known = handle.checked_sub(1).filter(|index| *index < NAMES.len());
    let index = known
        .ok_or_else(|| Error::argument(format!("{handle:#x} is no handle of ncclParamBind")))?;
    Ok(config::load().settings().swap_remove(index))
}

/// The handle of a name.
pub(crate) fn bind(key: Option<String>) -> Result<usize> {
    let key = key.ok_or_else(|| Error::argument("key is NULL"))?;
    let index = NAMES.iter().position(|name| name.to_bytes() == key.as_bytes());
    index.map(|index| index + 1).ok_or_else(|| {
        Error::argument(format!("{key} is no setting of ringway; `ringway env` lists them"))
    })
}

/// The value as a whole number.
pub(crate) fn number<T: TryFrom<i128>>(handle: usize) -> Result<T> {
    let setting = setting(handle)?;
    let word = setting.value.as_str();
    let value = match word {
        "true" => Some(1),
        "false" => Some(0),
        _ => word.parse().ok().or_else(|| parse_bytes(word).ok().map(i128::from)),
    };
    value.and_then(|value| T::try_from(value).ok()).ok_or_else(|| {
        Error::argument(format!(
            "{}={word} does not fit {}",
            setting.name,
            std::any::type_name::<T>()
        ))
    })
}

/// The value as a string, there until this thread asks again.
pub(crate) fn text(handle: usize) -> Result<*const c_char> {
    let value = c_string(&setting(handle)?.value)?;
    Ok(TEXT.with_borrow_mut(|text| {
        *text = value;
        text.as_ptr()
    }))
}

/// The bytes of the value, without an end, if there is room for them.
pub(crate) fn bytes(handle: usize, room: c_int) -> Result<Vec<u8>> {
    let setting = setting(handle)?;
    let value = setting.value.into_bytes();
    if usize::try_from(room).is_ok_and(|room| value.len() <= room) {
        return Ok(value);
    }
    Err(Error::argument(format!("{} has {} bytes; maxLen is {room}", setting.name, value.len())))
}

/// The value of a name as a string, there until this thread asks again, and its length.
pub(crate) fn by_key(key: Option<String>) -> Result<(*const c_char, c_int)> {
    let value = c_string(&setting(bind(key)?)?.value)?;
    let length = c_int::try_from(value.as_bytes().len()).unwrap_or(c_int::MAX);
    let address = VALUE.with_borrow_mut(|text| {
        *text = value;
        text.as_ptr()
    });
    Ok((address, length))
}

/// All names, there until this thread asks again, and how many they are.
pub(crate) fn keys() -> (*const *const c_char, c_int) {
    KEYS.with_borrow_mut(|keys| {
        *keys = NAMES.iter().map(|name| name.as_ptr()).collect();
        (keys.as_ptr(), c_int::try_from(keys.len()).unwrap_or(c_int::MAX))
    })
}

/// Writes all settings to the log.
pub(crate) fn dump() {
    for setting in config::load().settings() {
        tracing::info!(
            target: ringway::log::ENV,
            "{}={} ({})", setting.name, setting.value, setting.source
        );
    }
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::internal("a setting with a zero in it"))
}
