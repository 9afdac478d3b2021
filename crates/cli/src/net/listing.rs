//! RDMA devices and addresses as tables, with which would be used and why.

use crate::exit::ExitCode;
use std::net::Ipv6Addr;

use anyhow::bail;
use ringway::net::{AddressReport, DeviceReport, PortReport};

use crate::output;

/// Shows devices by a table, or as JSON; one of them, or all.
pub(crate) fn show(
    devices: &[DeviceReport],
    only: Option<&str>,
    json: bool,
    table: fn(&[&DeviceReport], usize) -> String,
) -> anyhow::Result<ExitCode> {
    let shown: Vec<&DeviceReport> =
        devices.iter().filter(|device| only.is_none_or(|only| device.name == only)).collect();
    if let (true, Some(only)) = (shown.is_empty(), only) {
        let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        bail!("there is no device {only}; devices are {}", names.join(", "));
    }
    match json {
        true => output::line(&serde_json::to_string_pretty(&shown)?)?,
        false => output::stdout_bytes(table(&shown, output::columns()).as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Ports, one a row.
pub(crate) fn devices(devices: &[&DeviceReport], columns: usize) -> String {
    let head = ["device", "port", "state", "link", "rate", "MTU", "interface", "firmware"];
    let mut rows = Vec::new();
    for (device, port) in ports(devices) {
        let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let cells = vec![
            device.name.clone(),
            port.number.to_string(),
            port.state.clone(),
            port.link_layer.clone(),
            or_none(&port.rate),
            port.mtu.map_or_else(|| "-".to_owned(), |mtu| mtu.to_string()),
            or_none(&port.interface),
            or_none(&device.firmware),
        ];
        rows.push((cells, verdict(port.used, &port.reason)));
    }
    laid_out(&head, &rows, columns) + &errors(devices)
}

/// Addresses, one a row.
pub(crate) fn gids(devices: &[&DeviceReport], columns: usize) -> String {
    let head = ["device", "port", "GID", "address", "type", "interface"];
    let mut rows = Vec::new();
    for (device, port) in ports(devices) {
        for gid in &port.gids {
            let cells = vec![
                device.name.clone(),
                port.number.to_string(),
                gid.index.to_string(),
                address(gid),
                gid.kind.to_owned(),
                gid.interface.clone().unwrap_or_else(|| "-".to_owned()),
            ];
            // A port that is not used has no address that is.
            let used = gid.used && port.used;
            let reason = if gid.used && !port.used { &port.reason } else { &gid.reason };
            rows.push((cells, verdict(used, reason)));
        }
        if port.gids.is_empty() {
            let mut cells = vec![device.name.clone(), port.number.to_string()];
            cells.resize(head.len(), "-".to_owned());
            rows.push((cells, verdict(false, &port.reason)));
        }
    }
    laid_out(&head, &rows, columns) + &errors(devices)
}

fn ports<'a>(
    devices: &[&'a DeviceReport],
) -> impl Iterator<Item = (&'a DeviceReport, &'a PortReport)> {
    devices.iter().flat_map(|device| device.ports.iter().map(|port| (*device, port)))
}

fn verdict(used: bool, reason: &str) -> String {
    let word = if used { "used" } else { "not used" };
    if reason.is_empty() { word.to_owned() } else { format!("{word}: {reason}") }
}

fn errors(devices: &[&DeviceReport]) -> String {
    let failed = devices.iter().filter_map(|device| Some((&device.name, device.error.as_ref()?)));
    failed.map(|(name, error)| format!("{name}: {error}\n")).collect()
}

/// The short form of an address.
fn address(gid: &AddressReport) -> String {
    let short = || gid.gid.parse::<Ipv6Addr>().map(|address| address.to_string());
    gid.ipv4.clone().or_else(|| short().ok()).unwrap_or_else(|| gid.gid.clone())
}

/// Columns side by side; what is said of a row stands behind it where it fits, else below.
fn laid_out(head: &[&str], rows: &[(Vec<String>, String)], columns: usize) -> String {
    let mut widths: Vec<usize> = head.iter().map(|word| word.chars().count()).collect();
    for (cells, _) in rows {
        for (width, cell) in widths.iter_mut().zip(cells) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded = cells.zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ")
    };
    let left: usize = widths.iter().sum::<usize>() + 2 * widths.len();
    let longest = rows.iter().map(|(_, said)| said.chars().count()).max().unwrap_or(0);
    let beside = left + longest <= columns;
    let mut page = line(&mut head.iter().copied()).trim_end().to_owned() + "\n";
    for (cells, said) in rows {
        let cells = line(&mut cells.iter().map(String::as_str));
        match beside {
            true => page += &format!("{cells}  {said}\n"),
            false => page += &format!("{}\n{}", cells.trim_end(), wrapped(said, columns)),
        }
    }
    page
}

/// Words in lines of their own, set in.
fn wrapped(text: &str, columns: usize) -> String {
    let mut lines = vec!["    ".to_owned()];
    for word in text.split(' ') {
        let last = lines.last().map_or(0, |line| line.chars().count());
        if last > 4 && last + 1 + word.chars().count() > columns {
            lines.push("    ".to_owned());
        }
        if let Some(line) = lines.last_mut() {
            if line.len() > 4 {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> DeviceReport {
        let gid = |index, gid: &str, ipv4: Option<&str>, used, reason: &str| AddressReport {
            index,
            gid: gid.to_owned(),
            ipv4: ipv4.map(ToOwned::to_owned),
            kind: "RoCE v2",
            interface: Some("eth0".to_owned()),
            used,
            reason: reason.to_owned(),
        };
        let port = PortReport {
            number: 1,
            state: "ACTIVE".to_owned(),
            link_layer: "Ethernet".to_owned(),
            rate: Some("400 Gb/sec (4X NDR)".to_owned()),
            mtu: Some(4096),
            max_mtu: Some(4096),
            lid: None,
            interface: Some("eth0".to_owned()),
            gids: vec![
                gid(0, "fe80:0000:0000:0000:0000:0000:0000:0001", None, false, "is link-local"),
                gid(
                    3,
                    "0000:0000:0000:0000:0000:ffff:0a01:0203",
                    Some("10.1.2.3"),
                    true,
                    "RoCE v2, routable IPv4",
                ),
            ],
            used: true,
            reason: "GID 3: RoCE v2, routable IPv4".to_owned(),
        };
        DeviceReport {
            name: "mlx5_0".to_owned(),
            guid: "0c42:a103:0065:1234".to_owned(),
            transport: "InfiniBand".to_owned(),
            firmware: Some("28.39.1002".to_owned()),
            vendor: Some((0x2c9, 4129)),
            queue_pairs: Some(131_072),
            requests: Some(32768),
            ports: vec![port],
            error: None,
        }
    }

    #[test]
    fn tables_fit_wide_and_narrow_terminals() {
        let sample = sample();
        assert_eq!(
            gids(&[&sample], 120),
            "device  port  GID  address   type     interface\n\
             mlx5_0  1     0    fe80::1   RoCE v2  eth0       not used: is link-local\n\
             mlx5_0  1     3    10.1.2.3  RoCE v2  eth0       used: RoCE v2, routable IPv4\n"
        );
        let narrow = gids(&[&sample], 50);
        assert!(narrow.contains("eth0\n    used: RoCE v2, routable IPv4\n"), "{narrow}");
        assert!(narrow.lines().all(|line| line.chars().count() <= 50), "{narrow}");
        let page = devices(&[&sample], 80);
        assert!(
            page.contains("mlx5_0  1     ACTIVE  Ethernet  400 Gb/sec (4X NDR)  4096"),
            "{page}"
        );
        assert!(page.contains("\n    used: GID 3: RoCE v2, routable IPv4\n"), "{page}");
    }

    #[test]
    fn a_port_that_is_not_used_uses_no_address() {
        let mut sample = sample();
        sample.ports[0].used = false;
        sample.ports[0].reason = "its link is down".to_owned();
        sample.error = Some("ibv_query_port on mlx5_0:2 failed".to_owned());
        let page = gids(&[&sample], 120);
        assert!(page.contains("eth0       not used: its link is down\n"), "{page}");
        assert!(page.ends_with("mlx5_0: ibv_query_port on mlx5_0:2 failed\n"), "{page}");
        sample.ports[0].gids.clear();
        assert!(gids(&[&sample], 120).contains("mlx5_0  1     -    -"), "{page}");
    }
}
