//! RDMA ports that this process uses: opened, judged, in the order of rails.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::select::{self, Chosen, Range, Wanted};
pub(crate) use super::wire::End;
use crate::config::{AddressFamily, RdmaSettings};
use crate::ffi::verbs::{
    Access, Context, Gid, LinkLayer, Mtu, Path, Pd, Port, PortState, Verbs, VerbsError,
};

/// A port that is used, and the address it is used by.
#[derive(Debug)]
pub(crate) struct Adapter {
    pub(crate) context: Arc<Context>,
    pub(crate) port: Port,
    pub(crate) chosen: Chosen,
    pub(crate) pd: Arc<Pd>,
    /// Its place among all ports that the settings name, used or not.
    pub(crate) place: u32,
    /// When its state was last asked for, by any link, and whether it was up.
    watch: Arc<Mutex<(Instant, bool)>>,
}

/// How old what is known of a port's state may be: asking an adapter for it takes long.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// What was found: ports that can be used, and of all others why not.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    pub(crate) adapters: Vec<Arc<Adapter>>,
    pub(crate) refused: Vec<String>,
    /// Names of all devices, asked for or not.
    pub(crate) devices: Vec<String>,
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
    let mut place = 0;
    for device in devices.iter().filter(|device| is_asked(device.name(), None)) {
        let name = device.name();
        let opened = device.open().and_then(|context| Ok((context.limits()?.ports, context)));
        let (ports, context) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                found.refused.push(error.to_string());
                place += u32::from(wanted.hca.allows(name, None));
                continue;
            }
        };
        for number in (1..=ports).filter(|number| is_asked(name, Some(*number))) {
            if found.adapters.len() >= most {
                return Ok(found);
            }
            match open(&context, &wanted, (number, place)) {
                Ok(adapter) => found.adapters.push(Arc::new(adapter)),
                Err(why) => found.refused.push(format!("{name}:{number}: {why}")),
            }
            place += u32::from(wanted.hca.allows(name, Some(number.into())));
        }
    }
    Ok(found)
}

fn judge(context: &Context, wanted: &Wanted, number: u8) -> Result<(Port, Chosen), String> {
    let words = |error: VerbsError| error.to_string();
    let port = context.port(number).map_err(words)?;
    select::port(wanted, context.name(), &port)?;
    let chosen = select::gid(wanted, &port, &context.gids(&port).map_err(words)?)?;
    Ok((port, chosen))
}

fn open(
    context: &Arc<Context>,
    wanted: &Wanted,
    (number, place): (u8, u32),
) -> Result<Adapter, String> {
    let (port, chosen) = judge(context, wanted, number)?;
    let pd = Pd::new(context).map_err(|error| error.to_string())?;
    let watch = Arc::new(Mutex::new((Instant::now(), true)));
    Ok(Adapter { context: Arc::clone(context), port, chosen, pd, place, watch })
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

    /// The port as it is now, with the address that is chosen now.
    ///
    /// # Errors
    /// When it cannot be used, with why.
    pub(super) fn again(&self, settings: &RdmaSettings) -> Result<Arc<Self>, String> {
        let (context, pd) = (Arc::clone(&self.context), Arc::clone(&self.pd));
        let (port, chosen) = judge(&context, &wanted(settings), self.port.number)?;
        let (place, watch) = (self.place, Arc::clone(&self.watch));
        Ok(Arc::new(Self { context, port, chosen, pd, place, watch }))
    }

    /// Whether the port is up, as far as is known; looks at it now and then, and when the device tells of something.
    pub(super) fn is_up(&self) -> bool {
        let mut news = false;
        while let Ok(Some(event)) = self.context.take_event() {
            news = true;
            tracing::info!(
                target: crate::log::NET,
                "NET/IB : {} : Got async event : {event}",
                self.context.name()
            );
        }
        // Whoever looks meanwhile is content with what was known.
        let Ok(mut watch) = self.watch.try_lock() else { return true };
        if news || watch.0.elapsed() >= WATCH_EVERY {
            let up =
                |port: Port| matches!(port.state, PortState::Active | PortState::ActiveDeferred);
            *watch = (Instant::now(), self.context.port(self.port.number).is_ok_and(up));
        }
        watch.1
    }

    /// Where the kernel counts what goes wrong at this port.
    pub(super) fn counters(&self) -> String {
        let (name, port) = (self.context.name(), self.port.number);
        format!("/sys/class/infiniband/{name}/ports/{port}/{{counters,hw_counters}}")
    }

    /// As NCCL has it in its log: `mlx5_0:1/RoCE`.
    pub(crate) fn label(&self) -> String {
        format!("{}/{}", self.name(), if self.is_infiniband() { "IB" } else { "RoCE" })
    }

    /// The way to a queue pair of a peer's; nothing where no MTU fits both.
    pub(crate) fn path(&self, settings: &RdmaSettings, own_psn: u32, to: &End) -> Option<Path> {
        Some(Path {
            port: self.port.number,
            gid_index: self.chosen.index,
            pkey_index: settings.pkey_index,
            remote_gid: Gid(to.gid),
            remote_lid: to.lid,
            remote_qp: to.number,
            global: self.port.global_route_needed || to.gid[..8] != self.chosen.gid.0[..8],
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
