//! Groups.

use ringway::Error;

use super::exports;
use crate::group;
use crate::raw::Out;
use crate::types::{Code, SIM_INFO_MAGIC, SimInfo};

exports! {
    fn ncclGroupStart / pncclGroupStart() {
        group::start();
        Ok(Code::Success)
    }

    fn ncclGroupEnd / pncclGroupEnd() {
        group::end()
    }

    fn ncclGroupSimulateEnd / pncclGroupSimulateEnd(info: Out<SimInfo>) {
        let expected_us = group::simulate_end()?;
        if info.is_null() {
            return Ok(Code::Success);
        }
        let mut given = info.get("simInfo")?;
        if given.magic != SIM_INFO_MAGIC {
            return Err(Error::argument(
                "ncclSimInfo_t argument not initialized via NCCL_SIM_INFO_INITIALIZER",
            ));
        }
        if given.size < size_of::<SimInfo>() {
            return Err(Error::argument(format!("ncclSimInfo_t says it has {} bytes", given.size)));
        }
        if let Some(expected_us) = expected_us {
            #[expect(clippy::cast_possible_truncation, reason = "a prediction has no more digits")]
            let rounded = expected_us as f32;
            given.estimated_time = rounded;
            info.put("simInfo", given)?;
        }
        Ok(Code::Success)
    }
}
