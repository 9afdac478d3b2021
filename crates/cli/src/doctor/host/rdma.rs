//! RDMA devices: from sysfs, or from the output of ibstat or ibstatus where a tree has nothing else.
//!
//! *Invariant*: any text gives a list; what is not understood is left out.

use super::Host;

const CLASS: &str = "/sys/class/infiniband";

/// An RDMA device.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Hca {
    /// `mlx5_0`.
    pub(crate) name: String,
    /// Firmware.
    pub(crate) firmware: Option<String>,
    /// What board it is: devices of one board are peers. The type where there is no board.
    pub(crate) board: String,
    /// `b83f:d203:00ad:eab8`.
    pub(crate) guid: Option<String>,
    /// Its PCI function.
    pub(crate) pci: Option<String>,
    /// Network interfaces of that function.
    pub(crate) interfaces: Vec<String>,
    /// Ports.
    pub(crate) ports: Vec<Port>,
}

/// A port.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Port {
    /// `mlx5_0/ports/1` below the class's folder.
    pub(crate) place: String,
    /// `mlx5_0:1`.
    pub(crate) name: String,
    /// `ACTIVE`, without its number.
    pub(crate) state: String,
    /// `LinkUp`.
    pub(crate) physical: String,
    /// As written: `400 Gb/sec (4X NDR)`.
    pub(crate) rate: String,
    /// Gb/s.
    pub(crate) gigabits: Option<f64>,
    /// Ethernet rather than InfiniBand.
    pub(crate) ethernet: bool,
    /// Local id and that of the subnet manager.
    pub(crate) lids: Option<(u64, u64)>,
}

impl Port {
    /// It carries traffic.
    pub(crate) fn is_active(&self) -> bool {
        self.state.eq_ignore_ascii_case("active")
    }
}

impl Host {
    /// Its RDMA devices, in the order of their numbers.
    pub(crate) fn hcas(&self) -> &[Hca] {
        self.hcas.get_or_init(|| {
            let mut found: Vec<Hca> = self.list(CLASS).iter().map(|name| self.hca(name)).collect();
            if found.is_empty() {
                found = parse(&self.output("ibstat").unwrap_or_default());
            }
            found.sort_by_key(|hca| {
                let digits = hca.name.trim_start_matches(|c: char| !c.is_ascii_digit());
                (digits.parse::<u32>().unwrap_or(u32::MAX), hca.name.clone())
            });
            found
        })
    }

    fn hca(&self, name: &str) -> Hca {
        let text = |file: &str| self.text(&format!("{CLASS}/{name}/{file}"));
        let pci = self.link_name(&format!("{CLASS}/{name}/device"));
        let interfaces = pci
            .as_ref()
            .map(|address| self.list(&format!("/sys/bus/pci/devices/{address}/net")))
            .unwrap_or_default();
        let ports = self.list(&format!("{CLASS}/{name}/ports"));
        Hca {
            name: name.to_owned(),
            firmware: text("fw_ver"),
            board: text("board_id").or_else(|| text("hca_type")).unwrap_or_default(),
            guid: text("node_guid"),
            pci,
            interfaces,
            ports: ports.iter().map(|port| self.port(name, port)).collect(),
        }
    }

    fn port(&self, hca: &str, port: &str) -> Port {
        let place = format!("{hca}/ports/{port}");
        let text = |file: &str| self.text(&format!("{CLASS}/{place}/{file}")).unwrap_or_default();
        let word = |file: &str| {
            let text = text(file);
            text.rsplit(':').next().unwrap_or_default().trim().to_owned()
        };
        let lid = |file: &str| self.number(&format!("{CLASS}/{place}/{file}"));
        let rate = text("rate");
        Port {
            name: format!("{hca}:{port}"),
            state: word("state"),
            physical: word("phys_state"),
            gigabits: gigabits(&rate),
            rate,
            ethernet: text("link_layer") == "Ethernet",
            lids: lid("lid").zip(lid("sm_lid")).map(|(a, b)| (a.unsigned_abs(), b.unsigned_abs())),
            place,
        }
    }

    /// Ports of all devices, each with its device.
    pub(crate) fn ports(&self) -> Vec<(&Hca, &Port)> {
        self.hcas().iter().flat_map(|hca| hca.ports.iter().map(move |port| (hca, port))).collect()
    }

    /// Ports with the Ethernet link layer that carry traffic: RoCE.
    pub(crate) fn roce_ports(&self) -> Vec<(&Hca, &Port)> {
        let mut ports = self.ports();
        ports.retain(|(_, port)| port.ethernet && port.is_active());
        ports
    }

    /// A port's GIDs: index, address, type.
    pub(crate) fn gids(&self, port: &Port) -> Vec<(usize, String, String)> {
        let folder = format!("{CLASS}/{}/gids", port.place);
        let mut found = Vec::new();
        for index in self.list(&folder).iter().filter_map(|name| name.parse::<usize>().ok()) {
            let address = self.text(&format!("{folder}/{index}")).unwrap_or_default();
            if address.is_empty() || address.chars().all(|c| c == '0' || c == ':') {
                continue;
            }
            let path = format!("{CLASS}/{}/gid_attrs/types/{index}", port.place);
            found.push((index, address, self.text(&path).unwrap_or_default()));
        }
        found.sort_unstable();
        found
    }

    /// A counter of a port: `counters/symbol_error`.
    pub(crate) fn port_counter(&self, port: &Port, name: &str) -> Option<u64> {
        self.text(&format!("{CLASS}/{}/{name}", port.place))?.parse().ok()
    }
}

fn gigabits(rate: &str) -> Option<f64> {
    rate.split_whitespace().next()?.parse().ok().filter(|rate: &f64| rate.is_finite())
}

/// Reads ibstat's output, or ibstatus's.
pub(super) fn parse(text: &str) -> Vec<Hca> {
    let mut found: Vec<Hca> = Vec::new();
    for line in text.lines() {
        let line = line.trim();
        if let Some(name) = line.strip_prefix("CA '").and_then(|rest| rest.split('\'').next()) {
            found.push(Hca { name: name.to_owned(), ..Hca::default() });
        } else if let Some(rest) = line.strip_prefix("Infiniband device '") {
            let name = rest.split('\'').next().unwrap_or_default();
            let number = rest.split_whitespace().nth(2).unwrap_or("1");
            let port = named_port(name, number);
            match found.last_mut().filter(|hca| hca.name == name) {
                Some(hca) => hca.ports.push(port),
                None => found.push(Hca {
                    name: name.to_owned(),
                    board: "unknown board".to_owned(),
                    ports: vec![port],
                    ..Hca::default()
                }),
            }
        } else if let Some(hca) = found.last_mut() {
            let number = line.strip_prefix("Port ").and_then(|rest| rest.strip_suffix(':'));
            match (number, line.split_once(':')) {
                (Some(number), _) => hca.ports.push(named_port(&hca.name, number)),
                (None, Some((key, value))) => field(hca, &key.to_lowercase(), value.trim()),
                (None, None) => {}
            }
        }
    }
    found
}

fn named_port(hca: &str, number: &str) -> Port {
    Port {
        name: format!("{hca}:{number}"),
        place: format!("{hca}/ports/{number}"),
        ..Port::default()
    }
}

fn field(hca: &mut Hca, key: &str, value: &str) {
    let word = value.rsplit(':').next().unwrap_or_default().trim();
    match key {
        "ca type" => value.clone_into(&mut hca.board),
        "firmware version" => hca.firmware = Some(value.to_owned()),
        "node guid" => hca.guid = Some(value.to_owned()),
        _ => {}
    }
    let Some(port) = hca.ports.last_mut() else { return };
    let number = || match value.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).unwrap_or(0),
        None => value.parse().unwrap_or(0),
    };
    match key {
        "state" => word.clone_into(&mut port.state),
        "physical state" | "phys state" => word.clone_into(&mut port.physical),
        "rate" => {
            value.clone_into(&mut port.rate);
            port.gigabits = gigabits(value);
        }
        "base lid" => port.lids = Some((number(), port.lids.map_or(0, |lids| lids.1))),
        "sm lid" => port.lids = Some((port.lids.map_or(0, |lids| lids.0), number())),
        "link layer" | "link_layer" => port.ethernet = value == "Ethernet",
        _ => {}
    }
}
