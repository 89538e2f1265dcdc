//! What only PostgreSQL has: several control nodes, notifications, lost connections, passwords, TLS.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::controller::store::sql::{Sql, values};
use crate::controller::store::turn::{self, TurnLock};

#[tokio::test(flavor = "multi_thread")]
async fn a_change_wakes_the_other_control_node() {
    let Some(site) = Site::postgres().await else { return };
    let (here, c1) = site.ready().await;
    let there = Store::open(&site.options, &"c2".into()).await.unwrap();
    let mut changes = there.changes();
    // Its connection listens from here on.
    tokio::time::timeout(Duration::from_secs(30), changes.wait_for(|count| *count > 0))
        .await
        .unwrap()
        .unwrap();
    changes.mark_unchanged();
    let id = submit(&here, "u1").await;
    tokio::time::timeout(Duration::from_secs(30), changes.changed()).await.unwrap().unwrap();
    assert_eq!(there.job(id).await.unwrap().state, JobState::Pending);
    place(&there, &c1).await;
    assert_eq!(here.job(id).await.unwrap().state, JobState::Waiting);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waiting_mends_waits_and_is_counted_and_what_it_does_not_is_refused_with_its_words() {
    let Some(site) = Site::postgres().await else { return };
    let store = site.open().await;
    let raise = |code: &str| {
        let body = format!("BEGIN RAISE EXCEPTION 'no room' USING ERRCODE = '{code}'; END");
        format!(
            "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$; \
             CREATE OR REPLACE TRIGGER refusing BEFORE INSERT ON job EXECUTE FUNCTION refuse()"
        )
    };
    let enter = async |code: &str| {
        let statement = raise(code);
        store.write(move |sql| sql.batch(&statement)).await.unwrap();
        store.submit(submission("u1"), 1000).await.unwrap_err()
    };
    for (at, code) in ["53100", "53300", "25006", "57P03", "08006", "40003"].into_iter().enumerate() {
        let error = enter(code).await;
        assert!(matches!(error, Error::Away(_)), "{code}: {error}");
        assert_eq!(error.to_string(), format!("the store is away: PostgreSQL: no room ({code})"));
        assert_eq!(store.times_away(), at as u64 + 1);
    }
    for code in ["42501", "54000", "23514"] {
        let error = enter(code).await;
        assert!(matches!(error, Error::Refused(_)), "{code}: {error}");
        assert_eq!(error.to_string(), format!("the store refuses: PostgreSQL: no room ({code})"));
    }
    assert_eq!(store.times_away(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_rights_is_told_so_by_the_server() {
    let Some(server) = server::get() else { return };
    let url = server.new_database().await;
    server.run("CREATE ROLE nobody_here LOGIN").await;
    let open = async |url: &str| {
        let options = Options::parse(url, None, Path::new("")).unwrap();
        Store::open(&options, &"c1".into()).await
    };
    // The user may use the schema, but none of its tables.
    let store = open(&url).await.unwrap();
    store.write(|sql| sql.batch("GRANT USAGE ON SCHEMA meshd TO nobody_here")).await.unwrap();
    let refused = open(&url.replace("meshd@", "nobody_here@")).await.unwrap_err();
    assert!(matches!(refused, Error::Refused(_)), "{refused}");
    assert!(refused.to_string().ends_with("(42501)"), "{refused}");
}

/// A transaction that has done its work, and ends only when it is told to.
struct Held {
    release: std::sync::mpsc::Sender<()>,
    holder: tokio::task::JoinHandle<Result<(), Error>>,
}

impl Held {
    async fn after(
        store: &Store,
        work: impl Fn(&mut dyn Sql) -> Result<(), Error> + Send + Sync + 'static,
    ) -> Self {
        let (done, is_done) = tokio::sync::oneshot::channel();
        let done = parking_lot::Mutex::new(Some(done));
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let wait = parking_lot::Mutex::new(wait);
        let store = store.clone();
        let holder = tokio::spawn(async move {
            let hold = move |sql: &mut dyn Sql| {
                work(sql)?;
                done.lock().take().unwrap().send(()).unwrap();
                wait.lock().recv().unwrap();
                Ok(())
            };
            store.write(hold).await
        });
        is_done.await.unwrap();
        Self { release, holder }
    }

    /// A transaction that keeps others from changing a job.
    async fn job(store: &Store, id: JobId) -> Self {
        Self::after(store, move |sql| crate::controller::store::jobs::load_one(sql, id).map(drop)).await
    }

    async fn end(self) {
        self.release.send(()).unwrap();
        self.holder.await.unwrap().unwrap();
    }
}

/// Returns once that many transactions wait for a lock, or a task has ended.
async fn until_waiting<T>(store: &Store, count: i64, task: &tokio::task::JoinHandle<T>) {
    // A transaction that waits for a locked row waits for the one that locked it, so blocked processes are counted.
    const WAITING: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
        AND cardinality(pg_blocking_pids(pid)) > 0";
    let begun = std::time::Instant::now();
    while !task.is_finished() && number(store, WAITING).await < count {
        assert!(begun.elapsed() < Duration::from_secs(9), "nothing waits");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_pass_at_a_time() {
    let Some(site) = Site::postgres().await else { return };
    let (here, c1) = site.ready().await;
    let there = Store::open(&site.options, &"c2".into()).await.unwrap();
    let held = Held::after(&there, |sql| {
        assert!(turn::try_lock(sql, TurnLock::Pass)?);
        Ok(())
    });
    let held = held.await;
    submit(&here, "u1").await;
    let passed = here.pass(c1.clone(), PassLimits::default()).await.unwrap();
    assert_eq!(passed, Passed { elsewhere: true, ..Passed::default() });
    let holder = here.turn_holder().await.unwrap().unwrap();
    let is_idle = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND state LIKE 'idle in%'";
    let found = here.read(move |sql| sql.query(is_idle, values![holder.pid])?.remove(0).take::<i64>()).await;
    assert_eq!((holder.role.as_str(), found.unwrap()), ("meshd", 1));
    held.end().await;
    assert_eq!(place(&here, &c1).await.len(), 1);
    assert_eq!(here.turn_holder().await.unwrap(), None);
}

/// A connection of a role that may connect, and has only the rights that the test gives it.
async fn connection_of(role: &str, url: &str) -> tokio_postgres::Client {
    let url = url.replace("meshd@", &format!("{role}@"));
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_without_a_right_keeps_no_control_node_from_anything() {
    let Some(server) = server::get() else { return };
    let url = server.new_database().await;
    server.run("CREATE ROLE stranger LOGIN").await;
    let stranger = connection_of("stranger", &url).await;
    let all =
        "SELECT pg_advisory_lock(1835335681), pg_advisory_lock(1835335682), pg_advisory_lock(1835335683)";
    stranger.batch_execute(all).await.unwrap();
    let site = Site { options: Options::parse(&url, None, Path::new("")).unwrap(), _directory: None };
    let (store, c1) = site.ready().await;
    submit(&store, "u1").await;
    assert_eq!(place(&store, &c1).await.len(), 1);
    let refused = stranger.batch_execute("SELECT 1 FROM meshd.meta FOR UPDATE").await.unwrap_err();
    assert_eq!(refused.code().map(tokio_postgres::error::SqlState::code), Some("42501"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_change_rows_and_no_table_works_once_the_tables_are_there() {
    let Some(server) = server::get() else { return };
    let url = server.new_database().await;
    server.run("CREATE ROLE worker LOGIN").await;
    let options = |url: &str| Options::parse(url, None, Path::new("")).unwrap();
    let owner = Store::open(&options(&url), &"c1".into()).await.unwrap();
    let grant = "GRANT USAGE ON SCHEMA meshd TO worker; \
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA meshd TO worker";
    owner.write(move |sql| sql.batch(grant)).await.unwrap();
    drop(owner);
    let site = Site { options: options(&url.replace("meshd@", "worker@")), _directory: None };
    let (store, c1) = site.ready().await;
    let id = submit(&store, "u1").await;
    assert_eq!(place(&store, &c1).await.len(), 1);
    accept(&store, &c1, id).await.unwrap();
    end(&store, &c1, id, FinalStatus::Successful).await.unwrap();
    sweep(&store, &c1, id).await;
    take_over(&store, &c1, "c2", OnLoss::TakeOver).await;
    let audit = Audit { who: "root".into(), op: "test".into(), target: String::new() };
    store.set_paused(audit.clone(), true).await.unwrap();
    store.delete_job(audit, id).await.unwrap();
    drop(store);
    drop(site.open().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_node_that_starts_during_a_pass_drives_what_the_pass_gives_it() {
    let Some(site) = Site::postgres().await else { return };
    let (store, c1) = site.ready().await;
    let (here, there) = (site.open().await, site.open().await);
    let new = Submission { node: "c2".into(), ..submission("u1") };
    let id = store.submit(new, 9).await.unwrap().id();
    let held = Held::job(&store, id).await;
    let pass = tokio::spawn(async move { here.pass(c1, PassLimits::default()).await });
    until_waiting(&store, 1, &pass).await;
    let start = tokio::spawn(async move { start(&there, "c2").await });
    until_waiting(&store, 2, &start).await;
    held.end().await;
    assert_eq!(pass.await.unwrap().unwrap().placed.len(), 1);
    let c2 = start.await.unwrap();
    let job = store.job(id).await.unwrap();
    assert_eq!((job.state, job.fence.as_ref()), (JobState::Waiting, Some(&c2)));
    assert_eq!(store.driven(c2).await.unwrap(), [job]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transition_that_waited_for_a_pass_knows_the_attempt_that_it_made() {
    let Some(site) = Site::postgres().await else { return };
    let (store, c1) = site.ready().await;
    let (here, there) = (site.open().await, site.open().await);
    let mut new = submission("u1");
    new.terms.retry = Retry { max: 1, on_error: true, ..Retry::default() };
    let id = store.submit(new, 9).await.unwrap().id();
    place(&store, &c1).await;
    accept(&store, &c1, id).await.unwrap();
    end(&store, &c1, id, FinalStatus::Error).await.unwrap();
    let held = Held::job(&store, id).await;
    let (by, owner) = (c1.clone(), c1.clone());
    let pass = tokio::spawn(async move { here.pass(by, PassLimits::default()).await });
    until_waiting(&store, 1, &pass).await;
    let swept = tokio::spawn(async move { sweep(&there, &owner, id).await });
    until_waiting(&store, 2, &swept).await;
    held.end().await;
    assert_eq!(pass.await.unwrap().unwrap().placed.len(), 1);
    swept.await.unwrap();
    let detail = store.detail(id).await.unwrap();
    let attempts: Vec<_> = detail.job.attempts.iter().map(|attempt| attempt.swept).collect();
    assert_eq!((detail.row.state, detail.row.attempt, attempts), (JobState::Waiting, 2, vec![true, false]));
    assert_eq!(detail.row.execution_node, detail.job.attempts[1].node);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_connections_are_replaced() {
    let Some(site) = Site::postgres().await else { return };
    let (store, c1) = site.ready().await;
    let server = server::get().unwrap();
    let id = submit(&store, "u1").await;
    let mut changes = store.changes();
    changes.wait_for(|count| *count > 0).await.unwrap();
    let database: String =
        store.read(|sql| sql.query("SELECT current_database()::text", &[])?.remove(0).take()).await.unwrap();
    for _ in 0..3 {
        let kill =
            format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'");
        server.run(&kill).await;
        assert_eq!(store.job(id).await.unwrap().id, id);
    }
    place(&store, &c1).await;
    // If the connection is lost within a transaction, the store is away and nothing has changed.
    let doomed = store.write(|sql| {
        sql.execute("DELETE FROM attempt", &[])?;
        sql.query("SELECT pg_terminate_backend(pg_backend_pid())::int", &[])?;
        Ok(())
    });
    assert!(matches!(doomed.await, Err(Error::Away(_))));
    assert_eq!(store.job(id).await.unwrap().attempts.len(), 1);
    // The store listens again: another store's change arrives.
    let other = Store::open(&site.options, &"c2".into()).await.unwrap();
    changes.mark_unchanged();
    let arrives = async {
        let mut at = 0;
        while !changes.has_changed().unwrap() {
            at += 1;
            submit(&other, &format!("other{at}")).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), arrives).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_is_said_so_at_once() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("postgresql://meshd@127.0.0.1:{port}/db?sslmode=disable");
    let options = Options::parse(&url, None, Path::new("")).unwrap();
    let refused = Store::open(&options, &"c1".into()).await.unwrap_err();
    assert!(matches!(refused, Error::Away(_)), "{refused}");
    assert!(refused.to_string().starts_with("the store is away: "), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_password_is_read_from_a_private_file() {
    let Some(site) = Site::postgres().await else { return };
    let server = server::get().unwrap();
    let database = database(&site);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    fs::write(&file, "correct horse\n").unwrap();
    let url = format!("postgresql://meshd@127.0.0.1:{}/{database}?sslmode=disable", server.port);
    let options = Options::parse(&url, Some(file.clone()), Path::new("")).unwrap();
    for mode in [0o640, 0o604] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let refused = Store::open(&options, &"c1".into()).await.unwrap_err();
        assert!(refused.to_string().contains(&format!("{mode:04o}")), "{refused}");
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o400)).unwrap();
    let store = Store::open(&options, &"c1".into()).await.unwrap();
    assert!(!format!("{store:?} {options:?}").contains("horse"));
    let without = Options::parse(&url, None, Path::new("")).unwrap();
    assert!(matches!(Store::open(&without, &"c1".into()).await, Err(Error::Away(_))));
    // A new password in the file counts from the next connection on.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&file, "wrong").unwrap();
    let refused = Store::open(&options, &"c1".into()).await.unwrap_err();
    assert!(!refused.to_string().contains("horse"), "{refused}");
}

fn database(site: &Site) -> String {
    let Options::Postgres(options) = &site.options else { panic!() };
    options.config().unwrap().get_dbname().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_must_prove_its_name() {
    let Some(site) = Site::postgres().await else { return };
    let server = server::get().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let password = directory.path().join("password");
    fs::write(&password, "correct horse").unwrap();
    fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).unwrap();
    let (port, database) = (server.port, database(&site));
    let ca = server.directory.join("ca.pem").display().to_string().replace('/', "%2F");
    let open = async |host: &str, query: String| {
        let url = format!("postgresql://meshd@{host}:{port}/{database}{query}");
        Store::open(&Options::parse(&url, Some(password.clone()), Path::new(""))?, &"c1".into()).await
    };
    let store = open("localhost", format!("?sslmode=verify-full&sslrootcert={ca}")).await.unwrap();
    let encrypted = "SELECT count(*) FROM pg_stat_ssl WHERE pid = pg_backend_pid() AND ssl";
    assert_eq!(number(&store, encrypted).await, 1);
    // The certificate is for localhost, and no authority of the system signed it.
    for (host, query) in [("127.0.0.1", format!("?sslrootcert={ca}")), ("localhost", String::new())] {
        let refused = open(host, query).await.unwrap_err();
        assert!(matches!(refused, Error::Away(_)), "{refused}");
    }
}

#[test]
fn stores_are_parsed() {
    let parse = |text: &str| Options::parse(text, None, Path::new("/d/store.db"));
    assert_eq!(parse("sqlite").unwrap(), Options::Sqlite("/d/store.db".into()));
    assert_eq!(parse("sqlite:/x").unwrap(), Options::Sqlite("/x".into()));
    let ssl = |text: &str| match parse(text).unwrap() {
        Options::Postgres(options) => options.ssl,
        Options::Sqlite(path) => panic!("{path:?}"),
    };
    assert_eq!(ssl("postgresql://u@a,b/db"), SslMode::VerifyFull(None));
    assert_eq!(ssl("postgresql://u@a/db?sslrootcert=%2Fca"), SslMode::VerifyFull(Some("/ca".into())));
    assert_eq!(ssl("postgresql://u@a/db?sslmode=disable"), SslMode::Disable);
    assert_eq!(ssl("postgresql://u@/db?host=/run/postgresql"), SslMode::Disable);
    let clear = |text: &str| parse(text).unwrap().host_in_the_clear();
    for (url, host) in [
        ("192.0.2.9/db?sslmode=disable", "192.0.2.9"),
        ("127.0.0.1,db2/db?sslmode=disable", "db2"),
        ("localhost/db?sslmode=disable&hostaddr=192.0.2.9", "192.0.2.9"),
    ] {
        assert_eq!(clear(&format!("postgresql://u@{url}")).as_deref(), Some(host));
    }
    for near in [
        "192.0.2.9/db",
        "127.1.2.3,localhost/db?sslmode=disable",
        "[::1]/db?sslmode=disable",
        "/db?host=/run",
    ] {
        assert_eq!(clear(&format!("postgresql://u@{near}")), None, "{near}");
    }
    assert_eq!(clear("sqlite"), None);
    for wrong in [
        "mysql://u@a/db",
        "sqlite:",
        "postgresql://u:hunter2@a/db",
        "postgresql://u@a/db?password=hunter2",
        "postgresql://u@a/db?sslmode=require",
        "postgresql://u@a/db?sslrootcert=%2",
        "postgresql://u:hunter2@a:port/db",
    ] {
        let refused = parse(wrong).unwrap_err().to_string();
        assert!(refused.starts_with("store: ") && !refused.contains("hunter2"), "{refused}");
    }
}
