//! RDMA ports that this process uses: opened, judged, in the order of rails.

use std::sync::Arc;

use super::select::{self, Chosen, Range, Wanted};
use crate::config::{AddressFamily, RdmaSettings};
use crate::ffi::verbs::{Access, Context, Gid, LinkLayer, Mtu, Path, Pd, Port, Verbs, VerbsError};

/// A port that is used, and the address it is used by.
#[derive(Debug)]
pub(crate) struct Adapter {
    pub(crate) context: Arc<Context>,
    pub(crate) port: Port,
    pub(crate) chosen: Chosen,
    pub(crate) pd: Arc<Pd>,
}

/// What was found: ports that can be used, and of all others why not.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    pub(crate) adapters: Vec<Arc<Adapter>>,
    pub(crate) refused: Vec<String>,
    /// Names of all devices, asked for or not.
    pub(crate) devices: Vec<String>,
}

/// One end of a queue pair, as the other must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteEnd {
    pub(crate) gid: Gid,
    pub(crate) lid: u16,
    pub(crate) mtu: i32,
    pub(crate) number: u32,
    pub(crate) psn: u32,
}

/// Opens every port that the settings let be used; those of devices in the order of their names.
///
/// # Errors
/// When there is no library, or it cannot tell the devices.
pub(crate) fn survey(settings: &RdmaSettings) -> Result<Survey, VerbsError> {
    survey_of(settings, &|_, _| true, usize::MAX)
}

/// The same of those ports alone, by device and number, that are asked for, until there are so many.
pub(crate) fn survey_of(
    settings: &RdmaSettings,
    is_asked: &dyn Fn(&str, Option<u8>) -> bool,
    most: usize,
) -> Result<Survey, VerbsError> {
    let mut devices = Verbs::open()?.devices()?;
    devices.sort_by(|a, b| a.name().cmp(b.name()));
    let wanted = wanted(settings);
    let names = devices.iter().map(|device| device.name().to_owned()).collect();
    let mut found = Survey { devices: names, ..Survey::default() };
    for device in devices.iter().filter(|device| is_asked(device.name(), None)) {
        let name = device.name();
        let opened = device.open().and_then(|context| Ok((context.limits()?.ports, context)));
        let (ports, context) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                found.refused.push(error.to_string());
                continue;
            }
        };
        for number in (1..=ports).filter(|number| is_asked(name, Some(*number))) {
            if found.adapters.len() >= most {
                return Ok(found);
            }
            match open(&context, &wanted, number) {
                Ok(adapter) => found.adapters.push(Arc::new(adapter)),
                Err(why) => found.refused.push(format!("{name}:{number}: {why}")),
            }
        }
    }
    Ok(found)
}

fn open(context: &Arc<Context>, wanted: &Wanted, number: u8) -> Result<Adapter, String> {
    let words = |error: VerbsError| error.to_string();
    let port = context.port(number).map_err(words)?;
    select::port(wanted, context.name(), &port)?;
    let chosen = select::gid(wanted, &port, &context.gids(&port).map_err(words)?)?;
    let pd = Pd::new(context).map_err(words)?;
    Ok(Adapter { context: Arc::clone(context), port, chosen, pd })
}

/// What the settings want of a port.
pub(crate) fn wanted(settings: &RdmaSettings) -> Wanted {
    Wanted {
        hca: settings.hca.clone(),
        gid_index: settings.gid_index.map(u32::from),
        ipv6: settings.family.map(|family| family == AddressFamily::V6),
        range: settings.range.map(|range| Range { address: range.address, bits: range.bits }),
        roce_version: settings.roce_version,
    }
}

impl Adapter {
    /// `mlx5_0:1`.
    pub(crate) fn name(&self) -> String {
        format!("{}:{}", self.context.name(), self.port.number)
    }

    pub(crate) fn is_infiniband(&self) -> bool {
        self.port.link_layer == LinkLayer::InfiniBand
    }

    /// As NCCL has it in its log: `mlx5_0:1/RoCE`.
    pub(crate) fn label(&self) -> String {
        format!("{}/{}", self.name(), if self.is_infiniband() { "IB" } else { "RoCE" })
    }

    /// The way to a queue pair of a peer's; nothing where no MTU fits both.
    pub(crate) fn path(
        &self,
        settings: &RdmaSettings,
        own_psn: u32,
        to: &RemoteEnd,
    ) -> Option<Path> {
        Some(Path {
            port: self.port.number,
            gid_index: self.chosen.index,
            pkey_index: settings.pkey_index,
            remote_gid: to.gid,
            remote_lid: to.lid,
            remote_qp: to.number,
            global: self.port.global_route_needed || to.gid.0[..8] != self.chosen.gid.0[..8],
            receive_psn: to.psn,
            send_psn: own_psn,
            mtu: Mtu::from_number(to.mtu.min(self.port.active_mtu))?,
            service_level: settings.service_level,
            traffic_class: settings.traffic_class,
            flow_label: 0,
            hop_limit: 64,
            timeout: settings.timeout,
            retries: settings.retries,
            rnr_retries: 7,
            rnr_timer: 12,
            reads_asked: 0,
            reads_answered: 0,
            access: Access::REMOTE_WRITE,
        })
    }
}
