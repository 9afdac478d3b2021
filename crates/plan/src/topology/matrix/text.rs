//! Saved text of `nvidia-smi topo -m`, `npu-smi info -t topo` and `rocm-smi --showtopo`.

use super::{Cell, Matrix, Row};

/// Bytes of such a text.
const BYTES_MOST: usize = 4 << 20;
/// Devices in such a text.
const DEVICES_MOST: usize = 512;

/// Why a text is no matrix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MatrixError {
    /// Too large.
    #[error(
        "the text has more than {BYTES_MOST} bytes or {DEVICES_MOST} devices; that is no matrix"
    )]
    TooLarge,
    /// No line looks like the head of a matrix.
    #[error("no table found: neither `nvidia-smi topo -m` nor `rocm-smi --showtopo` printed this")]
    NoTable,
    /// A row that does not fit the head.
    #[error("line {line}: {name} has {found} entries where the head names {wanted} devices")]
    Row {
        /// Line, from 1.
        line: usize,
        /// The device of the row.
        name: String,
        /// Entries in the row.
        found: usize,
        /// Devices in the head.
        wanted: usize,
    },
}

/// Reads whichever of the texts it is.
///
/// # Errors
/// It is none of them, or damaged.
pub fn read(text: &str) -> Result<Matrix, MatrixError> {
    if text.contains("ROCm System Management Interface") || text.contains("between two GPUs") {
        read_rocm_smi(text)
    } else {
        read_nvidia_smi(text)
    }
}

/// Reads what `nvidia-smi topo -m` printed: with tabs or blanks, with or without colours.
///
/// # Errors
/// There is no table, or a row does not fit its head.
pub fn read_nvidia_smi(text: &str) -> Result<Matrix, MatrixError> {
    if text.len() > BYTES_MOST {
        return Err(MatrixError::TooLarge);
    }
    let plain = without_escapes(text);
    let mut lines = (1_usize..).zip(plain.lines().map(|line| line.trim_end_matches('\r')));
    let head = lines.find_map(|(_, line)| head_of(line)).ok_or(MatrixError::NoTable)?;
    if head.names.len() > DEVICES_MOST {
        return Err(MatrixError::TooLarge);
    }
    let mut rows: Vec<Row> = Vec::new();
    let mut legend: Vec<(String, String)> = Vec::new();
    let mut in_table = true;
    for (number, line) in lines {
        let first = line.split_whitespace().next().unwrap_or_default();
        if in_table && is_device(first) && rows.len() < DEVICES_MOST {
            rows.push(head.row(number, line)?);
        } else if !line.trim().is_empty() {
            in_table = false;
            if let Some((name, device)) = line.split_once(':')
                && name.trim().starts_with("NIC")
                && is_device(name.trim())
                && legend.len() < DEVICES_MOST
            {
                legend.push((name.trim().to_owned(), device.trim().to_owned()));
            }
        }
    }
    if rows.is_empty() {
        return Err(MatrixError::NoTable);
    }
    for row in &mut rows {
        let own = legend.iter().find(|(name, _)| *name == row.name);
        row.device = own.map(|(_, device)| device.clone());
    }
    Ok(squared(&head.names, rows))
}

/// The head of the table.
struct Head {
    names: Vec<String>,
    cpus: bool,
    numa: bool,
}

fn head_of(line: &str) -> Option<Head> {
    let devices = line.split("CPU Affinity").next().unwrap_or_default();
    let names: Vec<String> = devices.split_whitespace().map(str::to_owned).collect();
    let fits = !names.is_empty() && names.iter().all(|name| is_device(name));
    // A row begins with a device too, but its cells are none.
    let starts = line.starts_with([' ', '\t']) || line.contains("CPU Affinity");
    (fits && starts).then(|| Head {
        names,
        cpus: line.contains("CPU Affinity"),
        numa: line.contains("NUMA Affinity"),
    })
}

impl Head {
    fn row(&self, number: usize, line: &str) -> Result<Row, MatrixError> {
        // With tabs an empty field is still a field; with blanks it cannot be told.
        let words: Vec<&str> = match line.contains('\t') {
            true => line.split('\t').map(str::trim).collect(),
            false => line.split_whitespace().collect(),
        };
        let name = words.first().copied().unwrap_or_default().to_owned();
        let cells = &words[1..];
        let wanted = self.names.len();
        if cells.len() < wanted {
            return Err(MatrixError::Row { line: number, name, found: cells.len(), wanted });
        }
        let (cells, rest) = cells.split_at(wanted);
        let mut rest = rest.iter().map(|word| word.trim()).collect::<Vec<_>>().into_iter();
        let known = |word: Option<&str>| {
            word.filter(|word| !word.is_empty() && *word != "N/A").map(str::to_owned)
        };
        Ok(Row {
            name,
            device: None,
            cells: cells.iter().map(|word| Cell::parse(word)).collect(),
            cpus: if self.cpus { known(rest.next()) } else { None },
            numa: if self.numa { known(rest.next()) } else { None },
        })
    }
}

/// A row and a column for every device that has either; what one lacks, the other tells.
fn squared(heads: &[String], rows: Vec<Row>) -> Matrix {
    let mut names: Vec<String> = rows.iter().map(|row| row.name.clone()).collect();
    names.extend(heads.iter().filter(|head| !rows.iter().any(|row| row.name == **head)).cloned());
    let place = |list: &[String], name: &str| list.iter().position(|one| one == name);
    let told = |from: &str, to: &str| {
        let row = rows.iter().find(|row| row.name == from)?;
        place(heads, to).and_then(|column| row.cells.get(column)).cloned()
    };
    let known = |from: &str, to: &str| {
        let cell = told(from, to).filter(|cell| *cell != Cell::Unknown);
        let same = || (from == to).then_some(Cell::Same);
        cell.or_else(|| told(to, from)).or_else(same).unwrap_or(Cell::Unknown)
    };
    let row = |name: &String| {
        let own = rows.iter().find(|row| row.name == *name);
        Row {
            name: name.clone(),
            device: own.and_then(|row| row.device.clone()),
            cells: names.iter().map(|other| known(name, other)).collect(),
            cpus: own.and_then(|row| row.cpus.clone()),
            numa: own.and_then(|row| row.numa.clone()),
        }
    };
    Matrix { rows: names.iter().map(row).collect() }
}

/// Reads what `rocm-smi --showtopo` printed.
///
/// # Errors
/// There is no table, or a row does not fit its head.
pub fn read_rocm_smi(text: &str) -> Result<Matrix, MatrixError> {
    if text.len() > BYTES_MOST {
        return Err(MatrixError::TooLarge);
    }
    let plain = without_escapes(text);
    let mut section = "";
    let mut head: Option<Head> = None;
    let mut rows: Vec<Row> = Vec::new();
    let mut numa: Vec<(String, String)> = Vec::new();
    for (number, line) in (1..).zip(plain.lines()) {
        if line.starts_with("===") {
            section = line.trim_matches(['=', ' ']);
            continue;
        }
        let first = line.split_whitespace().next().unwrap_or_default();
        if section.starts_with("Link Type") {
            if let Some(found) = head_of(line) {
                head = Some(found);
            } else if let Some(head) = head.as_ref().filter(|_| is_device(first)) {
                if head.names.len() > DEVICES_MOST || rows.len() == DEVICES_MOST {
                    return Err(MatrixError::TooLarge);
                }
                let mut row = head.row(number, line)?;
                for cell in &mut row.cells {
                    if matches!(cell, Cell::Other(word) if word == "0") {
                        *cell = Cell::Same;
                    }
                }
                rows.push(row);
            }
        } else if let Some((name, node)) = numa_line(line)
            && numa.len() < DEVICES_MOST
        {
            numa.push((name, node));
        }
    }
    if rows.is_empty() {
        // A listing of NUMA nodes alone.
        let name = |(name, _): &(String, String)| name.clone();
        let names: Vec<String> = numa.iter().map(name).collect();
        head = Some(Head { names: names.clone(), cpus: false, numa: false });
        rows = names
            .into_iter()
            .map(|name| Row { name, device: None, cells: Vec::new(), cpus: None, numa: None })
            .collect();
    }
    for row in &mut rows {
        let own = numa.iter().find(|(name, _)| *name == row.name);
        row.numa = own.map(|(_, node)| node.clone());
    }
    match head {
        Some(head) if !rows.is_empty() => Ok(squared(&head.names, rows)),
        _ => Err(MatrixError::NoTable),
    }
}

/// `GPU[0]  : (Topology) Numa Affinity: 0`.
fn numa_line(line: &str) -> Option<(String, String)> {
    let (gpu, rest) = line.split_once(':')?;
    let number = gpu.trim().strip_prefix("GPU[")?.strip_suffix(']')?;
    let node = rest.split_once("Numa Affinity:")?.1.trim();
    let plain = number.len() <= 4 && number.bytes().all(|byte| byte.is_ascii_digit());
    (plain && node != "-1").then(|| (format!("GPU{number}"), node.to_owned()))
}

/// `GPU0`, `NIC12`, `NPU3`, or a device's own name (`mlx5_0`).
fn is_device(word: &str) -> bool {
    let stem = word.trim_end_matches(|letter: char| letter.is_ascii_digit());
    stem.len() < word.len() && matches!(stem, "GPU" | "NIC" | "NPU" | "mlx5_" | "mlx4_" | "bnxt_re")
}

/// The text without the terminal's colours.
fn without_escapes(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter != '\u{1b}' {
            plain.push(letter);
        } else if letters.next() == Some('[') {
            // Parameters, up to the letter that ends the sequence.
            let _end = letters.by_ref().take(32).find(char::is_ascii_alphabetic);
        }
    }
    plain
}
