//! What units show of jobs that the store has forgotten with its last commits.

use serde_json::json;

use super::streams::whole;
use super::*;
use crate::controller::core::ChildId;
use crate::rpc::UnitState;

/// The store has forgotten that this job was placed.
const NOT_PLACED: &str = "DELETE FROM attempt; UPDATE job SET state = 'pending', attempt = 0, epoch = 0, controller_node = NULL, \
     execution_node = NULL, placed = NULL, started = NULL; UPDATE lease SET beat = beat - 2";
/// The store has forgotten all jobs, and begins to count again.
const NO_JOBS: &str =
    "DELETE FROM job; DELETE FROM sqlite_sequence WHERE name = 'job'; UPDATE lease SET beat = beat - 2";

#[test]
fn the_output_of_a_forgotten_run_is_no_part_of_the_next_ones() {
    for retries in [0, 1] {
        let site = Site::ready(&["e1"]);
        let (unit, job) = site.submit(json!({"retry": {"max": retries}}));
        let child = site.running(job);
        site.fabric.write(&child, &streams::events(1, 9));
        site.until("its output", || !site.output(&unit).is_empty());
        site.sql(NOT_PLACED);
        site.until("it to run again", || site.fabric.running(job.0).is_some_and(|next| next != child));
        let next = site.running(job);
        site.fabric.write(&next, &whole(2, "successful"));
        site.fabric.end(&next, ChildEnd::Succeeded, "exit status 0");
        let ended = site.ended(job);
        assert_eq!((ended.row.state, ended.job.attempts.len()), (JobState::Successful, 1));
        assert_eq!(
            String::from_utf8_lossy(&site.output(&unit)),
            String::from_utf8_lossy(&whole(2, "successful"))
        );
        assert_eq!(ended.output_end().unwrap().bytes, whole(2, "successful").len() as u64);
    }
}

#[test]
fn what_runs_of_a_forgotten_attempt_ends_with_a_job_that_has_no_other_one() {
    for restarts in [false, true] {
        let mut site = Site::ready(&["e1"]);
        let (unit, job) = site.submit(json!({}));
        let child = site.running(job);
        if restarts {
            site.kill();
        }
        site.sql(NOT_PLACED);
        site.sql("UPDATE instance SET enabled = 0; UPDATE job SET cancel_requested = 1, state = 'canceled', finished = 1");
        if restarts {
            site.boot();
        }
        site.until("its unit's end", || site.unit(&unit).unwrap().state.is_final());
        assert_eq!(site.unit(&unit).unwrap().state, UnitState::Canceled);
        site.until("its child's end", || !site.fabric.left().contains(&child));
    }
}

#[test]
fn a_unit_of_a_lost_job_shows_nothing_of_the_one_that_gets_its_number() {
    let site = Site::ready(&["e1"]);
    let (lost, job) = site.submit(json!({}));
    site.running(job);
    site.sql(NO_JOBS);
    let (unit, other) = site.submit(json!({"name": "other"}));
    assert_eq!(other, job);
    site.until("the lost one to end", || site.unit(&lost).unwrap().state.is_final());
    let shown = site.unit(&lost).unwrap();
    assert!(shown.detail.contains("it may have run"), "{}", shown.detail);
    assert_eq!(shown.extra_data["Name"], "");
    let child = site.running(other);
    site.fabric.write(&child, &whole(2, "successful"));
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    assert_eq!(site.ended(other).row.state, JobState::Successful);
    assert_eq!((site.output(&unit), site.output(&lost)), (whole(2, "successful"), Vec::new()));
}

#[test]
fn a_lost_job_that_was_not_placed_is_entered_again_and_one_that_may_have_run_ends() {
    let site = Site::ready(&["e1"]);
    let (placed, job) = site.submit(json!({}));
    site.running(job);
    site.operate(json!({"op": "instance.disable", "name": "e1"}));
    let (waits, _) = site.submit(json!({"name": "waits"}));
    site.sql(NO_JOBS);
    site.until("the one that ran to end", || site.unit(&placed).unwrap().state.is_final());
    site.until("the other one to be a job again", || site.jobs().iter().any(|job| job.row.name == "waits"));
    site.operate(json!({"op": "instance.enable", "name": "e1"}));
    let job = site.jobs().pop().unwrap().row.id;
    let child = site.running(job);
    site.fabric.write(&child, &whole(2, "successful"));
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    site.ended(job);
    assert_eq!(site.output(&waits), whole(2, "successful"));
}

#[test]
fn a_lost_job_whose_unit_does_not_say_yet_that_it_was_placed_is_not_entered_again() {
    let mut site = Site::ready(&["e1"]);
    let (unit, job) = site.submit(json!({}));
    site.running(job);
    site.kill();
    let status = site.directory(&unit).join("status");
    let text = std::fs::read_to_string(&status).unwrap();
    assert!(text.contains("\"Attempt\":1"), "{text}");
    std::fs::write(&status, text.replace("\"Attempt\":1", "\"Attempt\":0")).unwrap();
    site.sql(NO_JOBS);
    site.boot();
    site.until("its end", || site.unit(&unit).unwrap().state.is_final());
    let shown = site.unit(&unit).unwrap().detail;
    assert!(shown.contains("it may have run"), "{shown}");
    assert!(site.jobs().is_empty());
}

#[test]
fn what_the_store_forgot_while_no_process_lived_ends_before_it_runs_again() {
    for is_answering in [true, false] {
        let mut site = Site::ready(&["e1"]);
        let (unit, job) = site.submit(json!({}));
        let child = site.running(job);
        site.kill();
        site.sql(NOT_PLACED);
        site.fabric.change(|units| units.nodes.get_mut("e1").unwrap().is_deaf = !is_answering);
        site.boot();
        site.pass(seconds(40));
        if !is_answering {
            assert_eq!(
                site.fabric.look(|units| units.alive(job.0)),
                [child.as_str()],
                "its node has to say so"
            );
            site.fabric.change(|units| units.nodes.get_mut("e1").unwrap().is_deaf = false);
        }
        site.until("it to run again", || {
            let alive = site.fabric.look(|units| units.alive(job.0));
            assert!(alive.len() <= 1, "{alive:?}");
            alive.first().is_some_and(|next| *next != child)
        });
        let next = site.running(job);
        site.fabric.write(&next, &whole(2, "successful"));
        site.fabric.end(&next, ChildEnd::Succeeded, "exit status 0");
        assert_eq!(site.ended(job).row.state, JobState::Successful);
        assert_eq!(site.output(&unit), whole(2, "successful"));
    }
}

#[test]
fn a_child_of_a_job_that_the_store_lost_while_no_process_lived_is_ended() {
    let mut site = Site::ready(&["e1"]);
    let (unit, job) = site.submit(json!({}));
    site.running(job);
    site.kill();
    site.sql(NO_JOBS);
    site.boot();
    site.until("its end", || site.unit(&unit).unwrap().state.is_final());
    site.until("its child to go", || site.fabric.left().is_empty());
}

#[test]
fn an_attempt_that_goes_on_since_the_next_one_was_forgotten_has_its_own_output_alone() {
    let mut site = Site::ready(&["e1", "e2"]);
    let (unit, job) = site.submit(json!({"retry": {"max": 1, "unconfirmed": true}, "lost_after": "60s"}));
    let child = site.running(job);
    let node = site.fabric.look(|units| units.there[&child].node.clone());
    let all = whole(40, "successful");
    site.fabric.write(&child, &all[..all.len() / 2]);
    site.until("its output", || !site.output(&unit).is_empty());
    site.fabric.set_routed(&node, false);
    let alive = || site.fabric.look(|units| units.alive(job.0));
    site.until("another attempt", || alive().len() == 2);
    let next = alive().into_iter().find(|one| *one != child).unwrap();
    site.fabric.write(&next, &streams::events(1, 2));
    site.until("its output", || site.output(&unit).ends_with(&streams::events(1, 2)));
    site.kill();
    site.sql(&format!(
        "DELETE FROM attempt WHERE n = 2; UPDATE attempt SET outcome = NULL, ended = NULL; UPDATE job SET state = 'running', \
         attempt = 1, execution_node = '{node}', explanation = ''; UPDATE lease SET beat = beat - 2"
    ));
    site.boot();
    site.fabric.set_routed(&node, true);
    site.fabric.write(&child, &all[all.len() / 2..]);
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    let ended = site.ended(job);
    assert_eq!((ended.row.state, ended.job.attempts.len()), (JobState::Successful, 1));
    assert_eq!(String::from_utf8_lossy(&site.output(&unit)), String::from_utf8_lossy(&all));
}

#[test]
fn what_a_lost_job_that_had_ended_left_on_its_node_goes() {
    for is_taken_again in [false, true] {
        let mut site = Site::ready(&["e1"]);
        let (unit, job) = site.submit(json!({}));
        let child = site.running(job);
        site.fabric.change(|units| units.keeps_released = true);
        site.fabric.write(&child, &whole(2, "successful"));
        site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
        site.until("its end", || site.unit(&unit).unwrap().state.is_final());
        site.kill();
        site.sql(NO_JOBS);
        site.fabric.change(|units| units.keeps_released = false);
        site.boot();
        // Another job may have its number by then.
        if is_taken_again {
            let (_, other) = site.submit(json!({"name": "other"}));
            assert_eq!(other, job);
            site.running(other);
        }
        // The killed process's lease has to end, and then one housekeeping period passes.
        let within = site.until("its child to go", || !site.fabric.left().contains(&child));
        assert!(within < seconds(40 + 60 + 5), "{within:?}");
        // The unit of the lost job is the only place where its output is.
        site.pass(seconds(3_000));
        assert_eq!(site.output(&unit), whole(2, "successful"));
        site.until("the unit to go", || site.unit(&unit).is_none());
    }
}

#[test]
fn an_attempt_that_the_store_forgot_ends_before_the_next_one_though_the_one_before_it_ends_anew() {
    let mut site = Site::ready(&["e1", "e2"]);
    let (unit, job) = site.submit(json!({"retry": {"max": 2, "on": ["error"]}}));
    let first = site.running(job);
    let older = tempfile::tempdir().unwrap();
    let older = older.path().join("store.db");
    site.sql(&format!("VACUUM INTO '{}'", older.display()));
    site.fabric.end(&first, ChildEnd::Failed, "exit status 1");
    site.until("another attempt", || site.fabric.running(job.0).is_some_and(|next| next != first));
    let forgotten = site.running(job);
    site.kill();
    let node = site.fabric.look(|units| units.there[&forgotten].node.clone());
    site.fabric.change(|units| units.nodes.get_mut(&node).unwrap().is_deaf = true);
    site.restore(&older);
    site.boot();
    site.pass(seconds(40));
    assert_eq!(site.fabric.look(|units| units.alive(job.0)), [forgotten.as_str()], "its node has to say so");
    site.fabric.change(|units| units.nodes.get_mut(&node).unwrap().is_deaf = false);
    site.until("it to run again", || {
        let alive = site.fabric.look(|units| units.alive(job.0));
        assert!(alive.len() <= 1, "{alive:?}");
        alive.first().is_some_and(|next| *next != forgotten)
    });
    let next = site.running(job);
    site.fabric.write(&next, &whole(2, "successful"));
    site.fabric.end(&next, ChildEnd::Succeeded, "exit status 0");
    assert_eq!(site.ended(job).row.state, JobState::Successful);
    assert!(site.output(&unit).ends_with(&whole(2, "successful")));
}

#[test]
fn a_lost_job_ends_once_its_child_has_however_many_processes_that_takes() {
    let mut site = Site::ready(&["e1"]);
    let (unit, job) = site.submit(json!({}));
    let child = site.running(job);
    site.kill();
    site.sql(NO_JOBS);
    site.fabric.change(|units| units.nodes.get_mut("e1").unwrap().is_deaf = true);
    for _ in 0..2 {
        site.boot();
        let waits = format!("waiting for {child} to end on e1");
        site.until("it to say so", || site.unit(&unit).unwrap().detail.ends_with(&waits));
        assert!(!site.unit(&unit).unwrap().state.is_final());
        site.kill();
    }
    // Another job has this number by now, and knows nothing of the child.
    site.boot();
    assert_eq!(site.submit(json!({"name": "other"})).1, job);
    site.kill();
    site.fabric.change(|units| units.nodes.get_mut("e1").unwrap().is_deaf = false);
    site.boot();
    site.until("its end", || site.unit(&unit).unwrap().state.is_final());
    assert!(site.unit(&unit).unwrap().detail.ends_with("it may have run"));
    assert!(!site.fabric.look(|units| units.alive(job.0)).contains(&child));
}

#[test]
fn an_end_that_the_store_forgot_is_found_again_though_the_payload_is_gone() {
    let mut site = Site::ready(&["e1"]);
    let (unit, job) = site.submit(json!({"rerun": false}));
    let child = site.running(job);
    let older = tempfile::tempdir().unwrap();
    let older = older.path().join("store.db");
    site.sql(&format!("VACUUM INTO '{}'", older.display()));
    site.fabric.write(&child, &whole(2, "successful"));
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    site.fabric.change(|units| units.keeps_released = true);
    site.until("its end", || site.unit(&unit).unwrap().state.is_final());
    site.kill();
    site.fabric.change(|units| units.keeps_released = false);
    site.restore(&older);
    site.sql(
        "UPDATE attempt SET outcome = NULL, started = NULL; UPDATE job SET state = 'waiting', started = NULL",
    );
    site.boot();
    assert_eq!(site.ended(job).row.state, JobState::Successful);
    site.until("its release", || site.fabric.left().is_empty());
}

#[test]
fn a_child_of_a_lost_job_is_ended_under_the_id_that_its_node_gave_it() {
    let mut site = Site::ready(&["e1"]);
    let (_, job) = site.submit(json!({}));
    let child = site.running(job);
    site.run(site.driver().attempts.keep_far_unit(ChildId::parse(&child).unwrap(), "theirs".into())).unwrap();
    site.kill();
    site.sql(NO_JOBS);
    site.fabric.change(|units| units.nodes.get_mut("e1").unwrap().is_deaf = true);
    site.boot();
    site.until("it to be asked for", || {
        site.fabric.look(|units| units.looked_for_as(&child) == Some("theirs"))
    });
    site.fabric.change(|units| units.nodes.get_mut("e1").unwrap().is_deaf = false);
    site.until("its end", || !site.fabric.look(|units| units.alive(job.0)).contains(&child));
}

#[test]
fn a_lost_job_whose_node_was_taken_away_ends_without_it() {
    let mut site = Site::ready(&["e1"]);
    let (unit, job) = site.submit(json!({}));
    let child = site.running(job);
    site.kill();
    site.sql(NO_JOBS);
    site.fabric.set_routed("e1", false);
    site.boot();
    let waits = format!("waiting for {child} to end on e1");
    site.until("it to say so", || site.unit(&unit).unwrap().detail.ends_with(&waits));
    site.pass(seconds(400));
    assert!(!site.unit(&unit).unwrap().state.is_final(), "it may come back");
    site.declare_dead("e1");
    let passed = site.until("its end", || site.unit(&unit).unwrap().state.is_final());
    assert!(passed > seconds(1200), "{passed:?}");
    assert!(site.unit(&unit).unwrap().detail.ends_with("it may have run"));
}

#[test]
fn units_of_a_lost_job_end_alike_though_one_of_them_does_not_say_that_it_was_placed() {
    let mut site = Site::ready(&["e1"]);
    let (first, job) = site.submit(json!({"key": "one"}));
    let (second, _) = site.submit(json!({"key": "one"}));
    let child = site.running(job);
    site.kill();
    site.fabric.change(|units| units.lose(&child));
    let status = site.directory(&second).join("status");
    let text = std::fs::read_to_string(&status).unwrap();
    std::fs::write(&status, text.replace("\"Attempt\":1", "\"Attempt\":0")).unwrap();
    site.sql(NO_JOBS);
    site.boot();
    for unit in [first, second] {
        site.until("its end", || site.unit(&unit).unwrap().state.is_final());
        let shown = site.unit(&unit).unwrap().detail;
        assert!(shown.contains("it may have run"), "{shown}");
    }
    assert!(site.jobs().is_empty());
}

#[test]
fn units_of_a_lost_job_that_was_not_placed_follow_the_job_that_is_made_of_it_again() {
    let mut site = Site::ready(&["e1"]);
    site.operate(json!({"op": "instance.disable", "name": "e1"}));
    // Other jobs are entered again before or after it, so its new number is hardly ever its old one.
    (0..9).for_each(|_| drop(site.submit(json!({}))));
    let units = [(); 4].map(|()| site.submit(json!({"key": "one", "name": "one"})).0);
    // Jobs that are entered again get a later creation time.
    site.pass(seconds(1));
    site.kill();
    site.sql(NO_JOBS);
    site.boot();
    site.operate(json!({"op": "instance.enable", "name": "e1"}));
    let job = site.jobs().into_iter().find(|job| job.row.name == "one").unwrap().row.id;
    let child = site.running(job);
    site.fabric.write(&child, &whole(2, "successful"));
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    site.ended(job);
    for unit in units {
        assert_eq!(site.unit(&unit).unwrap().state, UnitState::Succeeded, "{:?}", site.unit(&unit));
        assert_eq!(site.output(&unit), whole(2, "successful"));
    }
}

#[test]
fn a_second_unit_that_alone_is_forgotten_shows_the_end_too() {
    let site = Site::ready(&["e1"]);
    let (_, job) = site.submit(json!({"key": "one"}));
    let (second, _) = site.submit(json!({"key": "one"}));
    let child = site.running(job);
    site.sql(&format!("DELETE FROM holder WHERE unit = '{second}'"));
    site.fabric.write(&child, &whole(2, "successful"));
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    site.ended(job);
    site.until("its end", || site.unit(&second).unwrap().state == UnitState::Succeeded);
    assert_eq!(site.output(&second), whole(2, "successful"));
}

#[test]
fn a_second_unit_of_a_job_stays_that_though_the_store_has_forgotten_it() {
    let site = Site::ready(&["e1"]);
    let (first, job) = site.submit(json!({"key": "one"}));
    let (second, _) = site.submit(json!({"key": "one"}));
    let child = site.running(job);
    site.sql(&format!("DELETE FROM holder WHERE unit = '{second}'; UPDATE lease SET beat = beat - 2"));
    site.until("it to be known again", || site.job(job).is_shown_by(&OWN.into(), &second));
    site.fabric.write(&child, &whole(2, "successful"));
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    site.ended(job);
    for unit in [first, second] {
        site.until("its end", || site.unit(&unit).unwrap().detail == "Finished");
        assert_eq!(site.output(&unit), whole(2, "successful"));
    }
}

#[test]
fn a_second_unit_of_a_job_that_was_not_placed_yet_stays_that_too() {
    let site = Site::ready(&["e1"]);
    site.operate(json!({"op": "instance.disable", "name": "e1"}));
    let (_, job) = site.submit(json!({"key": "one"}));
    let (second, _) = site.submit(json!({"key": "one"}));
    site.sql(&format!("DELETE FROM holder WHERE unit = '{second}'; UPDATE lease SET beat = beat - 2"));
    site.until("it to be known again", || site.job(job).is_shown_by(&OWN.into(), &second));
    assert!(!site.unit(&second).unwrap().state.is_final());
}

#[test]
fn a_lost_job_is_noticed_also_if_no_lease_shows_it_and_a_deleted_one_is_not_lost() {
    let site = Site::ready(&["e1"]);
    let (lost, job) = site.submit(json!({}));
    site.running(job);
    let (deleted, other) = site.submit(json!({}));
    site.sql(&format!(
        "DELETE FROM job; INSERT INTO audit (at, who, op, target) VALUES (1, 'unix:0', 'job.delete', '{other}')"
    ));
    for (unit, why) in [(&lost, "it may have run"), (&deleted, "was deleted")] {
        site.until("its end", || site.unit(unit).unwrap().state.is_final());
        let shown = site.unit(unit).unwrap().detail;
        assert!(shown.contains(why), "{shown}");
    }
    assert!(site.jobs().is_empty());
}

#[test]
fn a_job_that_is_shown_before_its_loss_is_noticed_was_not_deleted() {
    let site = Site::ready(&["e1"]);
    site.operate(json!({"op": "instance.disable", "name": "e1"}));
    let (unit, job) = site.submit(json!({"name": "waits"}));
    site.sql("DELETE FROM job");
    site.run(site.driver().publisher.show(job)).unwrap();
    assert!(!site.unit(&unit).unwrap().state.is_final(), "{}", site.unit(&unit).unwrap().detail);
    site.until("it to be a job again", || site.jobs().iter().any(|job| job.row.name == "waits"));
    assert!(!site.unit(&unit).unwrap().state.is_final());
}
