use super::super::*;
use super::{recorded, zip};

fn picked(stream: &[u8], chunk: usize, filter: impl Fn() -> EventReader) -> Vec<String> {
    let mut filter = filter();
    let found: Vec<u8> = stream.chunks(chunk).flat_map(|part| filter.push(part)).collect();
    String::from_utf8(found).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn the_events_of_a_recorded_stream_are_those_that_are_counted() {
    for name in ["ok.out", "failed.out", "unreachable.out"] {
        let stream = recorded(name);
        let mut output = WorkerOutput::default();
        output.push(&stream);
        let all = picked(&stream, stream.len(), || EventReader::new(0, None, false));
        assert_eq!(all.len() as u64, output.events(), "{name}");
        let text = String::from_utf8_lossy(&stream);
        assert!(all.iter().all(|line| text.lines().any(|known| known == line)), "they are as they were");
        for chunk in [1, 7, 1000] {
            assert_eq!(picked(&stream, chunk, || EventReader::new(0, None, false)), all, "{name}");
        }
        assert_eq!(picked(&stream, 1000, || EventReader::new(4, None, false)), all[3..], "{name}");
        let failed = picked(&stream, 1000, || EventReader::new(0, None, true));
        assert_eq!(failed.is_empty(), name == "ok.out", "{name}: {failed:?}");
    }
}

#[test]
fn events_are_picked_by_host_and_past_what_is_none() {
    let event = |counter: u32, host: &str| {
        let failed = "runner_on_failed";
        format!(
            "{{\"uuid\": \"u\", \"counter\": {counter}, \"event\": \"{failed}\", \"event_data\": {{\"host\": \"{host}\"}}}}\n"
        )
    };
    let mut stream = b"no JSON\n{\"event\": \"keepalive\", \"counter\": 0, \"uuid\": 0}\n".to_vec();
    stream.extend_from_slice(event(1, "a").as_bytes());
    stream.extend_from_slice(&zip(100));
    stream.extend_from_slice(event(2, "b").as_bytes());
    stream.extend(std::iter::repeat_n(b'x', 5 << 20));
    stream.extend_from_slice(format!("\n{}", event(3, "a")).as_bytes());
    let on = |host: &str| picked(&stream, 4096, || EventReader::new(0, Some(host.into()), true)).len();
    assert_eq!((on("a"), on("b"), on("c")), (2, 1, 0));
}
