//! What only SQLite has: the file, its lock, group commit, backup and restore.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::*;
use crate::controller::store::schema;
use crate::controller::store::sql::{Sql, values};

#[tokio::test]
async fn a_second_process_is_refused_by_name() {
    let site = Site::sqlite();
    let store = site.open().await;
    let refused = Store::open(&site.options, &"c2".into()).await.unwrap_err();
    let text = refused.to_string();
    assert!(text.contains(&format!("node c1, process {}", std::process::id())), "{text}");
    assert!(text.contains("store.db"), "{text}");
    drop(store);
    // A process that another test forks keeps the lock until it runs its program.
    let deadline = Instant::now() + Duration::from_secs(30);
    while let Err(error) = Store::open(&site.options, &"c2".into()).await {
        assert!(matches!(error, Error::Held { .. }) && Instant::now() < deadline, "{error}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn only_its_owner_may_read_the_files() {
    let site = Site::sqlite();
    let store = site.open().await;
    submit(&store, "u1").await;
    let directory = site.path().parent().unwrap();
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", entry.path());
        names.push(entry.file_name().into_string().unwrap());
    }
    names.sort();
    assert_eq!(names, ["store.db", "store.db-shm", "store.db-wal", "store.db.lock"]);
}

#[tokio::test]
async fn free_pages_and_the_log_keep_their_space_on_disk() {
    let site = Site::sqlite();
    let log = site.path().with_file_name("store.db-wal");
    let store = site.open().await;
    let database = rusqlite::Connection::open(site.path()).unwrap();
    let count =
        |of: &str| database.query_row(&format!("PRAGMA {of}"), [], |row| row.get::<_, u32>(0)).unwrap();
    let on_disk = |file: &Path| fs::metadata(file).unwrap().blocks() * 512;
    for n in 0..40 {
        let text = "x".repeat(100_000);
        store.write(move |sql| schema::set(sql, &format!("k{n}"), &text)).await.unwrap();
        // The next commit is answered only after the reserve was topped up.
        store.write(|_| Ok(())).await.unwrap();
        assert!(count("freelist_count") >= 256, "{}", count("freelist_count"));
        assert!(on_disk(site.path()) >= u64::from(count("page_count") * count("page_size")));
    }
    drop(database);
    drop(store);
    assert!(on_disk(&log) >= 8 << 20, "{}", on_disk(&log));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_survives_a_kill() {
    let site = Site::sqlite();
    let (store, c1) = site.ready().await;
    let id = submit(&store, "u1").await;
    place(&store, &c1).await;
    // The files as a kill -9 leaves them: nothing is closed.
    let after = Site::sqlite();
    for suffix in ["", "-wal"] {
        let name = |path: &Path| format!("{}{suffix}", path.display());
        fs::copy(name(site.path()), name(after.path())).unwrap();
    }
    let restarted = after.open().await;
    assert_eq!(restarted.job(id).await.unwrap(), store.job(id).await.unwrap());
    let new = start(&restarted, "c1").await;
    assert!(new.epoch > c1.epoch);
    assert_eq!(restarted.job(id).await.unwrap().fence, Some(new.clone()));
    accept(&restarted, &new, id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_that_wait_share_a_commit() {
    let site = Site::sqlite();
    let store = site.open().await;
    let before = *store.changes().borrow();
    // While one write holds the writer, others queue up after it.
    let (release, wait) = std::sync::mpsc::channel::<()>();
    let wait = parking_lot::Mutex::new(wait);
    let (begin, begun) = std::sync::mpsc::channel::<()>();
    let slow = store.clone();
    let hold = move |_: &mut dyn Sql| {
        begin.send(()).unwrap();
        Ok(wait.lock().recv().is_ok())
    };
    let slow = tokio::spawn(async move { slow.write(hold).await });
    tokio::task::spawn_blocking(move || begun.recv()).await.unwrap().unwrap();
    let writes: Vec<_> = (0..100)
        .map(|at| {
            let store = store.clone();
            tokio::spawn(async move { store.submit(submission(&format!("u{at}")), 1000).await })
        })
        .collect();
    let Engine::Sqlite(sqlite) = &*store.engine else { panic!() };
    while sqlite.queue.as_ref().unwrap().capacity() > 256 - 100 {
        tokio::task::yield_now().await;
    }
    release.send(()).unwrap();
    assert!(slow.await.unwrap().unwrap());
    for write in writes {
        write.await.unwrap().unwrap();
    }
    let commits = *store.changes().borrow() - before;
    assert!((1..50).contains(&commits), "{commits} commits");
    assert_eq!(number(&store, "SELECT count(*) FROM job").await, 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_fails_undoes_nothing_else() {
    let site = Site::sqlite();
    let (store, _) = site.ready().await;
    let writes: Vec<_> = (0..60)
        .map(|at| {
            let store = store.clone();
            let needs = if at % 2 == 0 { Vec::new() } else { vec![Dependency::Job(JobId(999))] };
            let new = Submission { needs, ..submission(&format!("u{at}")) };
            tokio::spawn(async move { store.submit(new, 1000).await.is_ok() })
        })
        .collect();
    for (at, write) in writes.into_iter().enumerate() {
        assert_eq!(write.await.unwrap(), at % 2 == 0);
    }
    assert_eq!(number(&store, "SELECT count(*) FROM job").await, 30);
    // A write that fails halfway through changes nothing.
    let failed = store.write(|sql| {
        sql.execute("DELETE FROM job", values![])?;
        Err::<(), _>(Error::Conflict("no".into()))
    });
    assert!(matches!(failed.await, Err(Error::Conflict(_))));
    assert_eq!(number(&store, "SELECT count(*) FROM job").await, 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_under_load_is_whole_and_can_be_restored() {
    let site = Site::sqlite();
    let (store, _) = site.ready().await;
    let is_enough = Arc::new(AtomicBool::new(false));
    let load = {
        let (store, is_enough) = (store.clone(), is_enough.clone());
        tokio::spawn(async move {
            let mut at = 0;
            while !is_enough.load(Ordering::Relaxed) {
                let new = Submission {
                    exclusive: vec!["one".into(), "two".into()],
                    ..submission(&format!("u{at}"))
                };
                store.submit(new, 100_000).await.unwrap();
                at += 1;
            }
            at
        })
    };
    while number(&store, "SELECT count(*) FROM job").await < 20 {
        tokio::task::yield_now().await;
    }
    let backup = site.path().with_file_name("backup.db");
    store.backup(&backup).await.unwrap();
    assert!(matches!(store.backup(&backup).await, Err(Error::File { .. })), "it exists");
    let at_backup = number(&store, "SELECT count(*) FROM job").await;
    while number(&store, "SELECT count(*) FROM job").await == at_backup {
        tokio::task::yield_now().await;
    }
    is_enough.store(true, Ordering::Relaxed);
    let submitted = load.await.unwrap();
    assert!(matches!(restore(&backup, site.path()), Err(Error::Held { .. })));
    drop(store);
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        chown(site.path().parent().unwrap(), Some(4711), Some(4712)).unwrap();
    }
    restore(&backup, site.path()).unwrap();
    if is_root {
        let owner = fs::metadata(site.path()).unwrap();
        assert_eq!((owner.uid(), owner.gid()), (4711, 4712), "the daemon's user, not the operator");
    }
    let old = rusqlite::Connection::open(site.path().with_file_name("store.db.old")).unwrap();
    let all: i64 = old.query_row("SELECT count(*) FROM job", [], |row| row.get(0)).unwrap();
    assert_eq!(all, submitted, "the file before it is kept, with what was in its log");
    drop(old);
    assert_eq!(fs::metadata(site.path()).unwrap().permissions().mode() & 0o777, 0o600);
    let store = site.open().await;
    let jobs = number(&store, "SELECT count(*) FROM job").await;
    assert!((20..=at_backup).contains(&jobs), "{jobs}");
    assert_eq!(number(&store, "SELECT count(*) FROM lock").await, 2 * jobs);
    assert_eq!(number(&store, "SELECT count(*) FROM holder").await, 2 * jobs);
    drop(store);
    // Neither garbage nor another program's database replaces the store.
    fs::write(&backup, "no database at all, but long enough to look at: ".repeat(100)).unwrap();
    assert!(restore(&backup, site.path()).is_err());
    fs::remove_file(&backup).unwrap();
    rusqlite::Connection::open(&backup).unwrap().execute_batch("CREATE TABLE meta (key, value)").unwrap();
    assert!(matches!(restore(&backup, site.path()), Err(Error::Corrupt(_))));
    assert_eq!(number(&site.open().await, "SELECT count(*) FROM job").await, jobs);
}

#[tokio::test]
async fn times_do_not_go_back_with_the_clock() {
    let site = Site::sqlite();
    let store = site.open().await;
    let first = submit(&store, "u1").await;
    // A clock that was ahead would have left this.
    sql(&store, "UPDATE job SET created = created + 3600000").await;
    let second = submit(&store, "u2").await;
    let created = |page: JobPage| page.jobs.iter().map(|job| (job.id, job.created)).collect::<Vec<_>>();
    let rows = created(store.list(JobSelection::default(), 9).await.unwrap());
    assert_eq!(rows, [(second, rows[1].1), (first, rows[1].1)]);
}
