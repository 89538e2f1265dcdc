use std::collections::{HashMap, HashSet};
use std::io::{Cursor, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use proptest::prelude::*;
use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use tokio::sync::mpsc;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

use super::list::cut;
use super::*;

type Pieces = HashMap<PieceId, Vec<u8>>;

/// Bytes that do not repeat themselves.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut random = SmallRng::seed_from_u64(seed);
    (0..length).map(|_| random.random()).collect()
}

/// A stream of ansible-runner. Every file has this time.
fn stream(files: &[(&str, Vec<u8>)], second: u8) -> Vec<u8> {
    let time = DateTime::from_date_and_time(2026, 11, 30, 12, 0, second).unwrap();
    let how =
        SimpleFileOptions::default().compression_method(CompressionMethod::Stored).last_modified_time(time);
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in files {
        zip.start_file(*name, how).unwrap();
        zip.write_all(bytes).unwrap();
    }
    let zip = zip.finish().unwrap().into_inner();
    let mut stream =
        format!("{{\"kwargs\": {{\"n\": {second}}}}}\n{{\"zipfile\": {}}}\n", zip.len()).into_bytes();
    stream.extend(BASE64.encode(&zip).into_bytes());
    stream.extend(b"{\"eof\": true}\n");
    stream
}

fn project(changed: u64) -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("env/extravars", noise(changed, 5000)),
        ("project/site.yml", noise(1, 900)),
        ("project/files/large", noise(2, 700_000)),
        ("project/a.yml", noise(3, 40)),
        ("project/changed.yml", noise(4 + changed, 3000)),
        ("project/empty", Vec::new()),
        ("project/files/middle", noise(20, 40_000)),
        ("inventory/hosts", noise(21, 100_000)),
    ]
}

/// The pieces that are kept of a payload.
fn kept(payload: &[u8], step: usize) -> Pieces {
    let (mut parts, mut cutter, mut kept) =
        (parts::PayloadParts::default(), cutter::Cutter::default(), Pieces::new());
    let mut keep = |piece: &[u8]| drop(kept.insert(PieceId::of(piece), piece.to_vec()));
    for bytes in payload.chunks(step) {
        parts.push(bytes, &mut |part| cut(&mut cutter, part, &mut keep));
    }
    parts.end(&mut |part| cut(&mut cutter, part, &mut keep));
    cutter.end(&mut keep);
    kept
}

/// What is sent of a payload to a node that says that it has `there`, and the pieces that were listed.
async fn sent(payload: &[u8], step: usize, there: &dyn Fn(&PieceId) -> bool) -> (Vec<u8>, Vec<PieceId>) {
    let ((lengths, listed), (answers, answered)) = (mpsc::unbounded_channel(), mpsc::channel(100_000));
    let mut lister = Lister::default();
    let mut chunks: Vec<_> = payload.chunks(step).map(|bytes| lister.push(bytes)).collect();
    let (rest, length, hash) = lister.end();
    chunks.push(rest);
    let mut frames = Vec::new();
    let pieces: Vec<_> = chunks.iter().flat_map(|chunk| chunk.pieces.clone()).collect();
    for list in pieces.chunks(LISTED_AT_ONCE) {
        PieceFrame::List(list.to_vec()).write(&mut frames);
        for piece in list {
            lengths.send(piece.length).unwrap();
            answers.try_send(there(piece)).unwrap();
        }
    }
    drop((lengths, answers));
    let (mut steps, mut second) = (Steps::new(listed, answered), SecondReading::new(payload));
    for chunk in chunks {
        frames.extend(second.frames(&steps.of(chunk.runs).await.unwrap()).unwrap());
    }
    PieceFrame::Raw(Vec::new()).write(&mut frames);
    PieceFrame::End { length, hash }.write(&mut frames);
    (frames, pieces)
}

/// What a node with these pieces makes of it.
async fn received(mut frames: &[u8], pieces: &Pieces) -> Result<Vec<u8>, AssemblyError> {
    let (mut assembly, mut payload) = (Assembly::default(), Vec::new());
    loop {
        let frame = PieceFrame::read(&mut frames).await.map_err(|_| AssemblyError::Invalid)?;
        payload.extend(match assembly.handle(frame)? {
            AssemblyStep::List(list) => {
                let there: Vec<_> = list.iter().map(|piece| pieces.contains_key(piece)).collect();
                assembly.listed(&list, &there);
                continue;
            }
            AssemblyStep::Bytes(bytes) => bytes,
            AssemblyStep::Piece(piece) => assembly.copy(pieces.get(&piece).cloned())?,
            AssemblyStep::End => break,
        });
    }
    assert!(frames.is_empty());
    Ok(payload)
}

async fn carried(payload: &[u8], step: usize, pieces: &Pieces) -> usize {
    let (frames, _) = sent(payload, step, &|piece| pieces.contains_key(piece)).await;
    assert!(received(&frames, pieces).await.unwrap() == payload, "another payload");
    frames.len()
}

#[tokio::test]
async fn a_second_payload_costs_what_has_changed_though_every_file_has_another_time() {
    let (first, second) = (stream(&project(0), 10), stream(&project(1), 20));
    let pieces = kept(&first, 64 * 1024);
    let cost = carried(&second, 128 * 1024, &pieces).await;
    // Inventory and extra vars, the changed file with its small neighbours, headers and hashes.
    assert!(cost < 100_000 + 5000 + 3000 + 40 + 900 + 3000, "{cost}");
    let nothing = carried(&second, 128 * 1024, &Pieces::new()).await;
    assert!((second.len() * 3 / 4..second.len() * 4 / 5).contains(&nothing), "base64 is not sent: {nothing}");
}

#[tokio::test]
async fn nothing_but_files_of_the_project_is_kept() {
    let pieces = kept(&stream(&project(0), 10), 1000);
    let all: Vec<u8> = pieces.into_values().flatten().collect();
    let has = |bytes: &[u8]| all.windows(16).any(|window| window == &bytes[8..24]);
    for (name, bytes) in project(0) {
        assert_eq!(
            has(&[&bytes[..], &[0; 24]].concat()),
            name.starts_with("project/") && !bytes.is_empty(),
            "{name}"
        );
    }
    assert!(!all.windows(6).any(|window| window == b"kwargs"));
}

#[tokio::test]
async fn thousands_of_small_files_are_few_pieces_and_a_new_one_moves_few() {
    let names: Vec<_> = (0..3000).map(|n| format!("project/roles/r{n}/tasks/main.yml")).collect();
    let files = |without: usize| {
        let all = names.iter().enumerate().filter(move |(n, _)| *n != without);
        all.map(|(n, name)| (name.as_str(), noise(n as u64, 400))).collect::<Vec<_>>()
    };
    let pieces = kept(&stream(&files(7), 10), 4096);
    assert!(pieces.len() < 60, "{}", pieces.len());
    let (_, listed) = sent(&stream(&files(usize::MAX), 20), 4096, &|_| false).await;
    let new = listed.iter().filter(|piece| !pieces.contains_key(piece)).count();
    assert!(new <= 2, "{new} of {}", listed.len());
}

#[test]
fn a_piece_is_listed_before_much_else_has_come() {
    let files = [("project/small", noise(1, 100)), ("env/large", noise(2, 4_000_000))];
    let payload = stream(&files, 1);
    let mut lister = Lister::default();
    let listed = payload.chunks(1000).position(|bytes| !lister.push(bytes).pieces.is_empty());
    assert!(listed.unwrap() < 1500, "{listed:?}");
    assert_eq!(kept(&payload, 1000), kept(&payload, 1_000_000));
}

#[tokio::test]
async fn payloads_that_are_no_streams_go_as_they_are() {
    let zip = stream(&project(0), 10);
    let start = zip.iter().position(|byte| *byte == b'U').unwrap();
    let announced = |line: &str| [line.as_bytes(), b"\n", &zip[start..]].concat();
    let mut odd = zip.clone();
    // Base64 that another program would write otherwise.
    let end = odd.len() - b"{\"eof\": true}\n".len();
    odd[end - 1] = b'=';
    odd[end - 2] = b'A';
    let mut broken = zip.clone();
    broken[start + 500_000] = b'{';
    // However it is read, one of these ends what is decoded at a time.
    let padded = [400_000, 400_004].map(|at| {
        let mut padded = zip.clone();
        padded[start + at..start + at + 4].copy_from_slice(b"AA==");
        padded
    });
    let [padded, padded_later] = padded;
    for payload in [
        noise(1, 100_000),
        Vec::new(),
        b"{\"zipfile\": 0}\n{\"eof\": true}\n".to_vec(),
        b"{\"zipfile\": 3}\nAA".to_vec(),
        announced(&format!("{{\"zipfile\": {}}}", u64::MAX)),
        announced("{\"zipfile\": 1}"),
        announced("{\"zipfile\": 40}"),
        announced("{\"zipfile\": 700000}"),
        announced("{\"zipfile\": 4000000}"),
        odd,
        broken,
        padded,
        padded_later,
    ] {
        for step in [7, 4096] {
            carried(&payload, step, &kept(&payload, 100)).await;
        }
    }
}

#[tokio::test]
async fn a_file_whose_size_comes_after_it_ends_what_is_known_of_a_zip() {
    let mut zip = Vec::new();
    let mut writer = ZipWriter::new_stream(&mut zip);
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    writer.start_file("env/archive", stored).unwrap();
    // Looks like the beginning of a file that is kept.
    writer
        .write_all(b"PK\x03\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\0\0\x10\0\0\x09\0\0\0project/x")
        .unwrap();
    writer.write_all(&noise(1, 100_000)).unwrap();
    writer.finish().unwrap();
    let payload = format!("{{\"zipfile\": {}}}\n{}", zip.len(), BASE64.encode(&zip)).into_bytes();
    assert!(kept(&payload, 1000).is_empty());
    carried(&payload, 1000, &Pieces::new()).await;
}

#[tokio::test]
async fn a_thousand_cut_offs_are_never_taken_for_the_whole() {
    let payload = stream(&project(0), 10);
    let pieces = kept(&payload, 4096);
    let some: Pieces = pieces.into_iter().enumerate().filter(|(n, _)| n % 2 == 0).map(|(_, p)| p).collect();
    let (frames, _) = sent(&payload, 8192, &|piece| some.contains_key(piece)).await;
    for n in 0..1000 {
        let end = frames.len() * n / 1000;
        assert!(received(&frames[..end], &some).await.is_err(), "{end} of {}", frames.len());
    }
}

#[tokio::test]
async fn lies_and_damage_make_no_other_payload() {
    let payload = stream(&project(0), 10);
    let pieces = kept(&payload, 4096);
    let (frames, listed) = sent(&payload, 8192, &|_| true).await;
    assert_eq!(received(&frames, &pieces).await.unwrap(), payload);
    // A piece that is said to be there and is not, one that has changed, and one that is shorter.
    for damage in 0..3 {
        let mut pieces = pieces.clone();
        let piece = pieces.get_mut(&listed[1]).unwrap();
        match damage {
            0 => drop(pieces.remove(&listed[1])),
            1 => piece[5] ^= 1,
            _ => piece.truncate(20),
        }
        assert!(received(&frames, &pieces).await.is_err(), "{damage}");
    }
    let there: HashSet<_> = pieces.keys().copied().collect();
    let of = |frames: &[PieceFrame]| {
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.write(&mut bytes));
        bytes
    };
    let one = *there.iter().next().unwrap();
    let list = PieceFrame::List(vec![one]);
    let copy = |piece, from, length| PieceFrame::Copy { piece, from, length };
    let end = PieceFrame::End { length: 0, hash: PieceId::of(b"").hash };
    assert_eq!(received(&of(&[list.clone(), end.clone()]), &pieces).await, Ok(Vec::new()));
    for bad in [
        vec![copy(0, 0, 1), end.clone()],
        vec![list.clone(), copy(1, 0, 1), end.clone()],
        vec![list.clone(), copy(0, 0, one.length + 1), end.clone()],
        vec![list.clone(), copy(0, u32::MAX, u32::MAX), end.clone()],
        vec![list.clone(), list.clone(), copy(1, 0, 1), copy(0, 0, 1), end.clone()],
        vec![PieceFrame::Decoded(b"a".to_vec()), end.clone()],
        vec![PieceFrame::Raw(b"a".to_vec()), end.clone()],
        vec![PieceFrame::List(vec![PieceId::of(b"another's")]), copy(0, 0, 1), end.clone()],
        [vec![list; 16 * 1024 + 2], vec![end]].concat(),
    ] {
        assert!(received(&of(&bad), &pieces).await.is_err(), "{:?}", &bad[..2]);
    }
}

#[tokio::test]
async fn any_number_of_pieces_may_be_missing_before_one_that_is_there() {
    let piece = noise(1, 100);
    let there = Pieces::from([(PieceId::of(&piece), piece.clone())]);
    let missing = vec![PieceId::of(b"missing"); LISTED_AT_ONCE];
    let mut frames = Vec::new();
    let lists = 200_u32;
    (0..lists).for_each(|_| PieceFrame::List(missing.clone()).write(&mut frames));
    PieceFrame::List(vec![PieceId::of(&piece)]).write(&mut frames);
    PieceFrame::Copy { piece: lists * LISTED_AT_ONCE as u32, from: 0, length: 99 }.write(&mut frames);
    let payload = BASE64.encode(&piece[..99]).into_bytes();
    PieceFrame::End { length: payload.len() as u64, hash: PieceId::of(&payload).hash }.write(&mut frames);
    assert_eq!(received(&frames, &there).await.unwrap(), payload);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_way_to_read_and_any_pieces_give_the_payload_back(
        seed in 0..1000_u64, steps in (1..200_000_usize, 1..200_000_usize), mask in any::<u64>(),
    ) {
        let sizes = noise(seed, 12);
        let files: Vec<_> = sizes.iter().enumerate().map(|(n, size)| {
            let name = ["project/x", "env/x", "roles/y", "project/z"][n % 4];
            (format!("{name}{n}"), noise(seed + n as u64, usize::from(*size) * usize::from(*size)))
        }).collect();
        let files: Vec<_> = files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
        let payload = stream(&files, 1);
        let pieces = kept(&payload, steps.0);
        // Pieces do not depend on how a payload is read.
        prop_assert!(pieces == kept(&payload, 1 << 20));
        let some: Pieces =
            pieces.into_iter().enumerate().filter(|(n, _)| mask >> (n % 64) & 1 == 1).map(|(_, p)| p).collect();
        futures_util::future::FutureExt::now_or_never(carried(&payload, steps.1, &some)).unwrap();
    }
}
