//! Programs of different age on one store.

use super::*;
use crate::controller::store::schema::{STEPS, Step};
use crate::controller::store::sql::Sql;

both![
    an_older_program_goes_on_unless_the_store_demands_a_newer_one,
    a_step_that_fails_leaves_the_former_schema,
];

fn add_column(sql: &mut dyn Sql) -> Result<(), Error> {
    sql.batch("ALTER TABLE job ADD COLUMN mood TEXT")
}

fn fail(sql: &mut dyn Sql) -> Result<(), Error> {
    sql.batch("ALTER TABLE job ADD COLUMN mood TEXT")?;
    sql.batch("ALTER TABLE nothing ADD COLUMN mood TEXT")
}

const ADDS: Step = Step { min_reader: 1, apply: add_column };
const DEMANDS: Step = Step { min_reader: STEPS.len() as i64 + 2, apply: |_| Ok(()) };

/// The steps of a later program.
fn later(more: &[Step]) -> &'static [Step] {
    [STEPS, more].concat().leak()
}

async fn open(site: &Site, steps: &'static [Step]) -> Result<Store, Error> {
    Store::open_with(&site.options, &"c1".into(), steps).await
}

async fn an_older_program_goes_on_unless_the_store_demands_a_newer_one(site: Site) {
    let store = open(&site, STEPS).await.unwrap();
    let id = submit(&store, "u1").await;
    let install = store.install_id().await.unwrap();
    drop(store);
    let newer = open(&site, later(&[ADDS])).await.unwrap();
    assert_eq!(newer.install_id().await.unwrap(), install);
    sql(&newer, "UPDATE job SET mood = 'good'").await;
    drop(newer);
    // The next node is not upgraded yet.
    let older = open(&site, STEPS).await.unwrap();
    assert_eq!(older.job(id).await.unwrap().id, id);
    submit(&older, "u2").await;
    drop(older);
    drop(open(&site, later(&[ADDS, DEMANDS])).await.unwrap());
    for steps in [STEPS, later(&[ADDS])] {
        let refused = open(&site, steps).await.unwrap_err();
        assert!(matches!(refused, Error::TooOld { min_reader, program }
            if min_reader == DEMANDS.min_reader && program == steps.len() as i64));
        assert!(
            refused.to_string().contains(&format!("schema {} or later", DEMANDS.min_reader)),
            "{refused}"
        );
    }
    drop(open(&site, later(&[ADDS, DEMANDS])).await.unwrap());
}

async fn a_step_that_fails_leaves_the_former_schema(site: Site) {
    drop(open(&site, STEPS).await.unwrap());
    assert!(matches!(
        open(&site, later(&[Step { min_reader: 1, apply: fail }])).await,
        Err(Error::Refused(_))
    ));
    let store = open(&site, later(&[ADDS])).await.unwrap();
    sql(&store, "UPDATE job SET mood = 'good'").await;
}
