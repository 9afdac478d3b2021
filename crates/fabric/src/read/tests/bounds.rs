//! What is read in bounded time and memory, and the lines of JSON.

use super::*;

#[test]
fn blank_lines_cost_nothing_and_too_many_are_an_error() {
    let text = format!("a\n{}b\n", "\n".repeat(1000));
    let kept = lines(&text, 0, 2).unwrap();
    assert_eq!(kept.iter().map(|line| line.number).collect::<Vec<_>>(), [1, 1002]);
    assert_eq!(lines("a\n\nb\nc\n", 0, 2).unwrap_err(), 4);
}

#[test]
fn errors_in_json_name_the_line_of_the_interface() {
    // Interfaces that are not in the order of their names, and a name that was heard before.
    let good = |interface: &str, peer: &str| {
        format!(
            "{{\"{interface}\": {{\n\"chassis\": {{\"leaf1\": {{}}}},\n\"port\": {{\"id\": {{\"type\": \"ifname\", \"value\": \
             \"{peer}\"}}}}}}}}"
        )
    };
    let text = format!(
        "{{\"node1\": {{\"lldp\": {{\"interface\": [\n{},\n{},\n{{\"eth1\": {{\"chassis\": {{\"leaf1\": {{}}}}}}}}\n]}}}}}}",
        good("eth9", "eth1"),
        good("eth2", "swp2")
    );
    let error = one("all.json", &text).unwrap_err();
    let wanted = text.lines().position(|line| line.contains("\"eth1\": {")).unwrap() + 1;
    assert_eq!(error.line as usize, wanted, "{error}\n{text}");
    assert!(error.what.contains("eth1"), "{error}");
}

#[test]
fn interfaces_whose_names_are_escaped_are_read_in_time() {
    // None of these can be found in the text as it stands.
    let mut text = String::from("{\"node1\": {\"lldp\": {\"interface\": [\n");
    for number in 0..20_000 {
        let comma = if number > 0 { "," } else { "" };
        text.push_str(&format!(
            "{comma}{{\"\\u0065th{number}\": {{\"chassis\": {{\"leaf{number}\": {{}}}}, \"port\": {{\"descr\": \"swp1\"}}}}}}\n"
        ));
    }
    text.push_str("]}}}");
    let begin = std::time::Instant::now();
    let fabric = one("all.json", &text).unwrap();
    assert_eq!(fabric.links.len(), 20_000);
    assert!(begin.elapsed().as_secs() < 30, "{:?}", begin.elapsed());
}
