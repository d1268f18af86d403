-- claim
WITH RECURSIVE lane(queue, type, run_at) AS
(SELECT first.queue AS queue, first.type AS type, first.run_at AS run_at
FROM (SELECT next_row.queue AS queue, next_row.type AS type, next_row.run_at AS run_at
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue >= '' ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1 OFFSET ?) AS first UNION ALL SELECT lane_row.queue AS queue, lane_row.type AS type, lane_row.run_at AS run_at
FROM lane JOIN job AS lane_row ON lane_row.id = coalesce((SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue = lane.queue AND next_row.type > lane.type ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1 OFFSET ?), (SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue > lane.queue ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1 OFFSET ?)))
 UPDATE job SET status='running', attempts=CASE WHEN (job.attempts < ?) THEN job.attempts + ? ELSE job.attempts END, claims=CASE WHEN (job.claims < ?) THEN job.claims + ? ELSE job.claims END, locked_by=?, locked_until=strftime('%Y-%m-%d %H:%M:%f000', strftime('%Y-%m-%d %H:%M:%f000', 'now'), printf('%+.3f seconds', ?)), started_at=strftime('%Y-%m-%d %H:%M:%f000', 'now') WHERE job.id IN (SELECT oldest.id
FROM (SELECT candidate.id AS id
FROM lane JOIN job AS candidate ON candidate.id IN (SELECT due.id
FROM job AS due
WHERE due.status = 'ready' AND due.queue = lane.queue AND due.type = lane.type AND due.run_at >= lane.run_at AND due.run_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now') ORDER BY due.run_at, due.id
 LIMIT ? OFFSET ?)
WHERE lane.type IN (__[POSTCOMPILE_sqla_jobs_types]) AND lane.queue IN (__[POSTCOMPILE_sqla_jobs_queues]) ORDER BY candidate.run_at, candidate.id
 LIMIT ? OFFSET ?) AS oldest) RETURNING id, type, queue, CAST(payload AS TEXT) AS payload, attempts, max_attempts, refunds, claims, locked_by, round((julianday(started_at) - 2440587.5) * 86400.0, 3) AS started_at, round((julianday(slot) - 2440587.5) * 86400.0, 3) AS slot, CAST(errors AS TEXT) AS errors, coalesce(round((julianday(run_at) - 2440587.5) * 86400.0, 3), -1e300) AS due, NULL AS anon_1;

-- claim from every queue
WITH RECURSIVE lane(queue, type, run_at) AS
(SELECT first.queue AS queue, first.type AS type, first.run_at AS run_at
FROM (SELECT next_row.queue AS queue, next_row.type AS type, next_row.run_at AS run_at
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue >= '' ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1 OFFSET ?) AS first UNION ALL SELECT lane_row.queue AS queue, lane_row.type AS type, lane_row.run_at AS run_at
FROM lane JOIN job AS lane_row ON lane_row.id = coalesce((SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue = lane.queue AND next_row.type > lane.type ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1 OFFSET ?), (SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue > lane.queue ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1 OFFSET ?)))
 UPDATE job SET status='running', attempts=CASE WHEN (job.attempts < ?) THEN job.attempts + ? ELSE job.attempts END, claims=CASE WHEN (job.claims < ?) THEN job.claims + ? ELSE job.claims END, locked_by=?, locked_until=strftime('%Y-%m-%d %H:%M:%f000', strftime('%Y-%m-%d %H:%M:%f000', 'now'), printf('%+.3f seconds', ?)), started_at=strftime('%Y-%m-%d %H:%M:%f000', 'now') WHERE job.id IN (SELECT oldest.id
FROM (SELECT candidate.id AS id
FROM lane JOIN job AS candidate ON candidate.id IN (SELECT due.id
FROM job AS due
WHERE due.status = 'ready' AND due.queue = lane.queue AND due.type = lane.type AND due.run_at >= lane.run_at AND due.run_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now') ORDER BY due.run_at, due.id
 LIMIT ? OFFSET ?)
WHERE lane.type IN (__[POSTCOMPILE_sqla_jobs_types]) ORDER BY candidate.run_at, candidate.id
 LIMIT ? OFFSET ?) AS oldest) RETURNING id, type, queue, CAST(payload AS TEXT) AS payload, attempts, max_attempts, refunds, claims, locked_by, round((julianday(started_at) - 2440587.5) * 86400.0, 3) AS started_at, round((julianday(slot) - 2440587.5) * 86400.0, 3) AS slot, CAST(errors AS TEXT) AS errors, coalesce(round((julianday(run_at) - 2440587.5) * 86400.0, 3), -1e300) AS due, NULL AS anon_1;

-- due rows but those that are refused
WITH RECURSIVE lane(queue, type, run_at) AS
(SELECT first.queue AS queue, first.type AS type, first.run_at AS run_at
FROM (SELECT next_row.queue AS queue, next_row.type AS type, next_row.run_at AS run_at
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue >= '' ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1 OFFSET ?) AS first UNION ALL SELECT lane_row.queue AS queue, lane_row.type AS type, lane_row.run_at AS run_at
FROM lane JOIN job AS lane_row ON lane_row.id = coalesce((SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue = lane.queue AND next_row.type > lane.type ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1 OFFSET ?), (SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue > lane.queue ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1 OFFSET ?))),
given AS MATERIALIZED
(SELECT json_extract("each".value, ?) AS id
FROM json_each(?) AS "each")
 SELECT oldest.id
FROM (SELECT candidate.id AS id
FROM lane JOIN job AS candidate ON candidate.id IN (SELECT due.id
FROM job AS due
WHERE due.status = 'ready' AND due.queue = lane.queue AND due.type = lane.type AND due.run_at >= lane.run_at AND (due.id NOT IN (SELECT given.id
FROM given)) AND due.run_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now') ORDER BY due.run_at, due.id
 LIMIT ? OFFSET ?)
WHERE lane.type IN (__[POSTCOMPILE_sqla_jobs_types]) AND lane.queue IN (__[POSTCOMPILE_sqla_jobs_queues]) ORDER BY candidate.run_at, candidate.id
 LIMIT ? OFFSET ?) AS oldest;

-- claim locked rows
WITH given AS MATERIALIZED
(SELECT json_extract("each".value, ?) AS id
FROM json_each(?) AS "each")
 UPDATE job SET status='running', attempts=CASE WHEN (job.attempts < ?) THEN job.attempts + ? ELSE job.attempts END, claims=CASE WHEN (job.claims < ?) THEN job.claims + ? ELSE job.claims END, locked_by=?, locked_until=strftime('%Y-%m-%d %H:%M:%f000', strftime('%Y-%m-%d %H:%M:%f000', 'now'), printf('%+.3f seconds', ?)), started_at=strftime('%Y-%m-%d %H:%M:%f000', 'now') WHERE job.id IN (SELECT given.id
FROM given) RETURNING id, type, queue, CAST(payload AS TEXT) AS payload, attempts, max_attempts, refunds, claims, locked_by, round((julianday(started_at) - 2440587.5) * 86400.0, 3) AS started_at, round((julianday(slot) - 2440587.5) * 86400.0, 3) AS slot, CAST(errors AS TEXT) AS errors, coalesce(round((julianday(run_at) - 2440587.5) * 86400.0, 3), -1e300) AS due, NULL AS anon_1;

-- next due
WITH RECURSIVE lane(queue, type, run_at) AS
(SELECT first.queue AS queue, first.type AS type, first.run_at AS run_at
FROM (SELECT next_row.queue AS queue, next_row.type AS type, next_row.run_at AS run_at
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue >= '' ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1 OFFSET ?) AS first UNION ALL SELECT lane_row.queue AS queue, lane_row.type AS type, lane_row.run_at AS run_at
FROM lane JOIN job AS lane_row ON lane_row.id = coalesce((SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue = lane.queue AND next_row.type > lane.type ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1 OFFSET ?), (SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue > lane.queue ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1 OFFSET ?)))
 SELECT round((julianday(min(due.run_at)) - 2440587.5) * 86400.0, 3) - round((julianday(strftime('%Y-%m-%d %H:%M:%f000', 'now')) - 2440587.5) * 86400.0, 3) AS anon_1
FROM (SELECT lane.run_at AS run_at
FROM lane
WHERE lane.type IN (__[POSTCOMPILE_sqla_jobs_types]) AND lane.queue IN (__[POSTCOMPILE_sqla_jobs_queues])) AS due;

-- next due but those that are refused
WITH RECURSIVE given AS MATERIALIZED
(SELECT json_extract("each".value, ?) AS id
FROM json_each(?) AS "each"),
lane(queue, type, run_at) AS
(SELECT first.queue AS queue, first.type AS type, first.run_at AS run_at
FROM (SELECT next_row.queue AS queue, next_row.type AS type, next_row.run_at AS run_at
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue >= '' ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1 OFFSET ?) AS first UNION ALL SELECT lane_row.queue AS queue, lane_row.type AS type, lane_row.run_at AS run_at
FROM lane JOIN job AS lane_row ON lane_row.id = coalesce((SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue = lane.queue AND next_row.type > lane.type ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1 OFFSET ?), (SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue > lane.queue ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1 OFFSET ?)))
 SELECT round((julianday(min(due.run_at)) - 2440587.5) * 86400.0, 3) - round((julianday(strftime('%Y-%m-%d %H:%M:%f000', 'now')) - 2440587.5) * 86400.0, 3) AS anon_1
FROM (SELECT (SELECT first_row.run_at
FROM job AS first_row
WHERE first_row.status = 'ready' AND first_row.queue = lane.queue AND first_row.type = lane.type AND first_row.run_at >= lane.run_at AND (first_row.id NOT IN (SELECT given.id
FROM given)) ORDER BY first_row.run_at, first_row.id
 LIMIT 1 OFFSET ?) AS run_at
FROM lane
WHERE lane.type IN (__[POSTCOMPILE_sqla_jobs_types]) AND lane.queue IN (__[POSTCOMPILE_sqla_jobs_queues])) AS due;

-- renew
WITH given AS MATERIALIZED
(SELECT json_extract("each".value, ?) AS id, json_extract("each".value, ?) AS claims, json_extract("each".value, ?) AS locked_by
FROM json_each(?) AS "each"),
held AS MATERIALIZED
(SELECT job.id AS id
FROM given JOIN job ON job.id IN (SELECT given.id
FROM given) AND job.id = given.id AND (job.status || '') = 'running' AND job.claims = given.claims AND job.locked_by IS given.locked_by ORDER BY job.id)
 UPDATE job SET locked_until=strftime('%Y-%m-%d %H:%M:%f000', strftime('%Y-%m-%d %H:%M:%f000', 'now'), printf('%+.3f seconds', ?)) WHERE job.id IN (SELECT held.id
FROM held) RETURNING id, claims;

-- held
WITH given AS MATERIALIZED
(SELECT json_extract("each".value, ?) AS id, json_extract("each".value, ?) AS claims, json_extract("each".value, ?) AS locked_by
FROM json_each(?) AS "each")
 SELECT job.id, job.claims
FROM given JOIN job ON job.id IN (SELECT given.id
FROM given) AND job.id = given.id AND (job.status || '') = 'running' AND job.claims = given.claims AND job.locked_by IS given.locked_by;

-- settle
WITH given AS MATERIALIZED
(SELECT json_extract("each".value, ?) AS id, json_extract("each".value, ?) AS claims, json_extract("each".value, ?) AS locked_by, json_extract("each".value, ?) AS status, json_extract("each".value, ?) AS delay, json_extract("each".value, ?) AS attempts, json_extract("each".value, ?) AS refunds, json_extract("each".value, ?) AS error, json_extract("each".value, ?) AS errors, json_extract("each".value, ?) AS result, json_extract("each".value, ?) AS expired
FROM json_each(?) AS "each")
 UPDATE job SET status=given.status, run_at=CASE WHEN (given.delay IS NOT NULL) THEN strftime('%Y-%m-%d %H:%M:%f000', strftime('%Y-%m-%d %H:%M:%f000', 'now'), printf('%+.3f seconds', given.delay)) ELSE job.run_at END, attempts=given.attempts, refunds=given.refunds, locked_by=CASE WHEN (given.status = 'ready') THEN NULL ELSE job.locked_by END, locked_until=NULL, last_error=coalesce(given.error, job.last_error), errors=coalesce(given.errors, job.errors), result=given.result, lease_expirations=CASE WHEN (job.lease_expirations < ?) THEN job.lease_expirations + given.expired ELSE job.lease_expirations END, last_lease_expired_at=CASE WHEN (given.expired > ?) THEN strftime('%Y-%m-%d %H:%M:%f000', 'now') ELSE job.last_lease_expired_at END, finished_at=CASE WHEN (given.status = 'ready') THEN NULL ELSE strftime('%Y-%m-%d %H:%M:%f000', 'now') END FROM given WHERE job.id IN (SELECT given.id
FROM given) AND job.id = given.id AND (job.status || '') = 'running' AND job.claims = given.claims AND job.locked_by IS given.locked_by RETURNING id, claims;

-- insert payloads
INSERT INTO job (payload, type, queue, max_attempts, created_at, run_at) SELECT listed.value, ? AS anon_1, ? AS anon_2, ? AS anon_3, strftime('%Y-%m-%d %H:%M:%f000', 'now') AS anon_4, strftime('%Y-%m-%d %H:%M:%f000', 'now') AS anon__1
FROM (SELECT "each"."key" AS n, "each".value AS value
FROM json_each(?) AS "each") AS listed ORDER BY listed.n RETURNING id;

-- complete
WITH given AS MATERIALIZED
(SELECT json_extract("each".value, ?) AS id, json_extract("each".value, ?) AS claims, json_extract("each".value, ?) AS locked_by
FROM json_each(?) AS "each")
 UPDATE job SET status='done', locked_until=NULL, result=NULL, finished_at=strftime('%Y-%m-%d %H:%M:%f000', 'now') FROM given WHERE job.id IN (SELECT given.id
FROM given) AND job.id = given.id AND (job.status || '') = 'running' AND job.claims = given.claims AND job.locked_by IS given.locked_by RETURNING id, claims;

-- complete one
UPDATE job SET status='done', locked_until=NULL, result=NULL, finished_at=strftime('%Y-%m-%d %H:%M:%f000', 'now') WHERE job.id = ? AND (job.status || '') = 'running' AND job.claims = ? AND job.locked_by IS ?;

-- expired
SELECT job.id, job.type, job.queue, CAST(job.payload AS TEXT) AS payload, job.attempts, job.max_attempts, job.refunds, job.claims, job.locked_by, round((julianday(job.started_at) - 2440587.5) * 86400.0, 3) AS started_at, round((julianday(job.slot) - 2440587.5) * 86400.0, 3) AS slot, CAST(job.errors AS TEXT) AS errors
FROM job
WHERE job.status = 'running' AND (job.locked_until <= strftime('%Y-%m-%d %H:%M:%f000', 'now') OR job.locked_until IS NULL) ORDER BY job.locked_by, job.id
 LIMIT ? OFFSET ?;

-- expired but those that are refused
WITH given AS MATERIALIZED
(SELECT json_extract("each".value, ?) AS id
FROM json_each(?) AS "each")
 SELECT job.id, job.type, job.queue, CAST(job.payload AS TEXT) AS payload, job.attempts, job.max_attempts, job.refunds, job.claims, job.locked_by, round((julianday(job.started_at) - 2440587.5) * 86400.0, 3) AS started_at, round((julianday(job.slot) - 2440587.5) * 86400.0, 3) AS slot, CAST(job.errors AS TEXT) AS errors
FROM job
WHERE job.status = 'running' AND (job.locked_until <= strftime('%Y-%m-%d %H:%M:%f000', 'now') OR job.locked_until IS NULL) AND (job.id NOT IN (SELECT given.id
FROM given)) ORDER BY job.locked_by, job.id
 LIMIT ? OFFSET ?;

-- strays
WITH given AS MATERIALIZED
(SELECT json_extract("each".value, ?) AS id, json_extract("each".value, ?) AS claims
FROM json_each(?) AS "each")
 SELECT job.id, job.type, job.queue, CAST(job.payload AS TEXT) AS payload, job.attempts, job.max_attempts, job.refunds, job.claims, job.locked_by, round((julianday(job.started_at) - 2440587.5) * 86400.0, 3) AS started_at, round((julianday(job.slot) - 2440587.5) * 86400.0, 3) AS slot, CAST(job.errors AS TEXT) AS errors
FROM job
WHERE job.status = 'running' AND job.locked_by = ? AND NOT (EXISTS (SELECT given.id
FROM given
WHERE job.id = given.id AND job.claims = given.claims)) ORDER BY job.locked_by, job.id
 LIMIT ? OFFSET ?;

-- endings
WITH given AS MATERIALIZED
(SELECT json_extract("each".value, ?) AS id, json_extract("each".value, ?) AS claims, json_extract("each".value, ?) AS locked_by
FROM json_each(?) AS "each")
 SELECT job.id, job.claims, job.status
FROM given JOIN job ON job.id = given.id AND job.claims = given.claims AND (job.locked_by = given.locked_by OR job.locked_by IS NULL);

-- current time
SELECT strftime('%Y-%m-%d %H:%M:%f000', 'now') AS anon_1;

-- insert job
INSERT INTO job (type, payload, queue, run_at, max_attempts, created_at) VALUES (?, ?, ?, strftime('%Y-%m-%d %H:%M:%f000', 'now'), ?, strftime('%Y-%m-%d %H:%M:%f000', 'now')) RETURNING id, type, payload, queue, idempotency_key, status, run_at, attempts, max_attempts, refunds, claims, locked_by, locked_until, last_error, errors, result, lease_expirations, last_lease_expired_at, schedule_id, slot, trace, created_at, started_at, finished_at;

-- insert job with a delay
INSERT INTO job (type, payload, queue, run_at, max_attempts, created_at) VALUES (?, ?, ?, strftime('%Y-%m-%d %H:%M:%f000', strftime('%Y-%m-%d %H:%M:%f000', 'now'), printf('%+.3f seconds', ?)), ?, strftime('%Y-%m-%d %H:%M:%f000', 'now')) RETURNING id, type, payload, queue, idempotency_key, status, run_at, attempts, max_attempts, refunds, claims, locked_by, locked_until, last_error, errors, result, lease_expirations, last_lease_expired_at, schedule_id, slot, trace, created_at, started_at, finished_at;

-- insert job at a time
INSERT INTO job (type, payload, queue, run_at, max_attempts, created_at) VALUES (?, ?, ?, ?, ?, strftime('%Y-%m-%d %H:%M:%f000', 'now')) RETURNING id, type, payload, queue, idempotency_key, status, run_at, attempts, max_attempts, refunds, claims, locked_by, locked_until, last_error, errors, result, lease_expirations, last_lease_expired_at, schedule_id, slot, trace, created_at, started_at, finished_at;

-- insert job with a key
INSERT INTO job (type, payload, queue, idempotency_key, run_at, max_attempts, created_at) VALUES (?, ?, ?, ?, strftime('%Y-%m-%d %H:%M:%f000', 'now'), ?, strftime('%Y-%m-%d %H:%M:%f000', 'now')) ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING RETURNING id, type, payload, queue, idempotency_key, status, run_at, attempts, max_attempts, refunds, claims, locked_by, locked_until, last_error, errors, result, lease_expirations, last_lease_expired_at, schedule_id, slot, trace, created_at, started_at, finished_at;

-- insert jobs
INSERT INTO job (type, run_at, created_at) VALUES (?, strftime('%Y-%m-%d %H:%M:%f000', 'now'), strftime('%Y-%m-%d %H:%M:%f000', 'now')) RETURNING id;

-- insert jobs with keys
INSERT INTO job (type, run_at, created_at) VALUES (?, strftime('%Y-%m-%d %H:%M:%f000', 'now'), strftime('%Y-%m-%d %H:%M:%f000', 'now')) ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING RETURNING id, idempotency_key;

-- jobs by key
SELECT job.idempotency_key, job.id
FROM job
WHERE job.idempotency_key IN (__[POSTCOMPILE_idempotency_key_1]);

-- job by key
SELECT job.id, job.type, job.payload, job.queue, job.idempotency_key, job.status, job.run_at, job.attempts, job.max_attempts, job.refunds, job.claims, job.locked_by, job.locked_until, job.last_error, job.errors, job.result, job.lease_expirations, job.last_lease_expired_at, job.schedule_id, job.slot, job.trace, job.created_at, job.started_at, job.finished_at
FROM job
WHERE job.idempotency_key = ?;

-- job by key, whatever the app hides
SELECT job.id, job.type, job.payload, job.queue, job.idempotency_key, job.status, job.run_at, job.attempts, job.max_attempts, job.refunds, job.claims, job.locked_by, job.locked_until, job.last_error, job.errors, job.result, job.lease_expirations, job.last_lease_expired_at, job.schedule_id, job.slot, job.trace, job.created_at, job.started_at, job.finished_at
FROM job
WHERE job.idempotency_key = ?;

-- ready of type
SELECT job.id, job.type, job.payload, job.queue, job.idempotency_key, job.status, job.run_at, job.attempts, job.max_attempts, job.refunds, job.claims, job.locked_by, job.locked_until, job.last_error, job.errors, job.result, job.lease_expirations, job.last_lease_expired_at, job.schedule_id, job.slot, job.trace, job.created_at, job.started_at, job.finished_at
FROM job
WHERE job.status = 'ready' AND job.type = ? ORDER BY job.id;

-- look
SELECT next.wait, round((julianday(strftime('%Y-%m-%d %H:%M:%f000', 'now')) - 2440587.5) * 86400.0, 3) AS now, schedule.id, schedule.catch_up_limit, CAST(schedule.enabled AS TEXT) AS enabled, CAST(schedule.name AS TEXT) AS name, CAST(schedule.job_type AS TEXT) AS job_type, CAST(schedule.queue AS TEXT) AS queue, CAST(schedule.cron AS TEXT) AS cron, CAST(schedule.timezone AS TEXT) AS timezone, CAST(schedule.catch_up AS TEXT) AS catch_up, CAST(schedule.overlap AS TEXT) AS overlap, CAST(schedule.last_error AS TEXT) AS last_error, CAST(schedule.payload AS TEXT) AS payload, schedule."offset" AS "offset", round((julianday(schedule.next_run_at) - 2440587.5) * 86400.0, 3) AS next_run_at, round((julianday(schedule.last_slot) - 2440587.5) * 86400.0, 3) AS last_slot, CAST(round((julianday(schedule.next_run_at) - 2440587.5) * 86400.0, 3) AS TEXT) AS seen_next_run_at, CAST(round((julianday(schedule.last_slot) - 2440587.5) * 86400.0, 3) AS TEXT) AS seen_last_slot, schedule.planned_cron IS NULL OR schedule.cron != schedule.planned_cron OR schedule.planned_timezone IS NULL OR schedule.timezone != schedule.planned_timezone OR schedule.planned_enabled IS NULL OR schedule.enabled != schedule.planned_enabled OR schedule.enabled = (schedule.next_run_at IS NULL) AS is_edited, schedule.retired_at IS NOT NULL AS is_retired, CASE WHEN (schedule.overlap = ?) THEN EXISTS (SELECT job.id
FROM job
WHERE job.schedule_id IS NOT NULL AND job.status IN ('ready', 'running') AND job.schedule_id = schedule.id) ELSE 0 END AS has_unfinished
FROM (SELECT round((julianday((SELECT min(schedule.next_run_at) AS min_1
FROM schedule
WHERE schedule.retired_at IS NULL AND schedule.next_run_at > strftime('%Y-%m-%d %H:%M:%f000', 'now'))) - 2440587.5) * 86400.0, 3) - round((julianday(strftime('%Y-%m-%d %H:%M:%f000', 'now')) - 2440587.5) * 86400.0, 3) AS wait) AS next LEFT OUTER JOIN schedule ON schedule.id IN (SELECT due.id
FROM (SELECT schedule.id AS id
FROM schedule
WHERE schedule.retired_at IS NULL AND schedule.next_run_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now') AND (schedule.job_type IN (__[POSTCOMPILE_sqla_jobs_types]) OR schedule.last_error IS NULL AND (schedule.declared_by IS NULL OR schedule.declared_by = ?) AND schedule.next_run_at <= strftime('%Y-%m-%d %H:%M:%f000', strftime('%Y-%m-%d %H:%M:%f000', 'now'), printf('%+.3f seconds', ?))) ORDER BY schedule.next_run_at, schedule.id
 LIMIT ? OFFSET ?) AS due UNION SELECT edited.id
FROM (SELECT schedule.id AS id
FROM schedule
WHERE schedule.retired_at IS NULL AND (schedule.planned_cron IS NULL OR schedule.cron != schedule.planned_cron OR schedule.planned_timezone IS NULL OR schedule.timezone != schedule.planned_timezone OR schedule.planned_enabled IS NULL OR schedule.enabled != schedule.planned_enabled OR schedule.enabled = (schedule.next_run_at IS NULL)) AND (schedule.job_type IN (__[POSTCOMPILE_sqla_jobs_types]) OR schedule.last_error IS NULL AND (schedule.declared_by IS NULL OR schedule.declared_by = ?)) ORDER BY schedule.id
 LIMIT ? OFFSET ?) AS edited UNION SELECT just_retired.id
FROM (SELECT schedule.id AS id
FROM schedule
WHERE schedule.retired_at > strftime('%Y-%m-%d %H:%M:%f000', strftime('%Y-%m-%d %H:%M:%f000', 'now'), printf('%+.3f seconds', ?)) AND schedule.declared_by = ? ORDER BY schedule.retired_at, schedule.id
 LIMIT ? OFFSET ?) AS just_retired);

-- move
WITH given AS MATERIALIZED
(SELECT json_extract("each".value, ?) AS id, json_extract("each".value, ?) AS cron, json_extract("each".value, ?) AS timezone, json_extract("each".value, ?) AS enabled, json_extract("each".value, ?) AS seen_next_run_at, json_extract("each".value, ?) AS seen_last_slot, json_extract("each".value, ?) AS is_planned, json_extract("each".value, ?) AS next_run_at, json_extract("each".value, ?) AS last_slot, json_extract("each".value, ?) AS missed, json_extract("each".value, ?) AS overlaps, json_extract("each".value, ?) AS error
FROM json_each(?) AS "each"),
unchanged AS MATERIALIZED
(SELECT schedule.id AS id
FROM given JOIN schedule ON schedule.id = given.id AND CAST(schedule.cron AS TEXT) = given.cron AND CAST(schedule.timezone AS TEXT) = given.timezone AND CAST(schedule.enabled AS TEXT) = given.enabled AND schedule.retired_at IS NULL AND CAST(round((julianday(schedule.next_run_at) - 2440587.5) * 86400.0, 3) AS TEXT) IS given.seen_next_run_at AND CAST(round((julianday(schedule.last_slot) - 2440587.5) * 86400.0, 3) AS TEXT) IS given.seen_last_slot
WHERE schedule.id IN (SELECT given.id
FROM given) ORDER BY schedule.id)
 UPDATE schedule SET planned_cron=CASE WHEN given.is_planned THEN schedule.cron ELSE schedule.planned_cron END, planned_timezone=CASE WHEN given.is_planned THEN schedule.timezone ELSE schedule.planned_timezone END, planned_enabled=CASE WHEN given.is_planned THEN schedule.enabled ELSE schedule.planned_enabled END, next_run_at=CASE WHEN given.is_planned THEN strftime('%Y-%m-%d %H:%M:%f000', given.next_run_at, 'unixepoch') ELSE schedule.next_run_at END, last_slot=strftime('%Y-%m-%d %H:%M:%f000', given.last_slot, 'unixepoch'), slots_missed=CASE WHEN (schedule.slots_missed < ?) THEN schedule.slots_missed + given.missed ELSE schedule.slots_missed END, overlaps_skipped=(schedule.overlaps_skipped + given.overlaps), last_error=given.error FROM given WHERE schedule.id = given.id AND schedule.id IN (SELECT unchanged.id
FROM unchanged) RETURNING id;

-- declared
WITH given AS MATERIALIZED
(SELECT json_extract("each".value, ?) AS name
FROM json_each(?) AS "each")
 SELECT schedule.id, schedule.declared_by, schedule.name AS name, schedule.job_type AS job_type, CAST(schedule.payload AS TEXT) AS payload, schedule.queue AS queue, schedule.cron AS cron, schedule.timezone AS timezone, schedule."offset" AS "offset", schedule.catch_up AS catch_up, schedule.catch_up_limit AS catch_up_limit, schedule.overlap AS overlap
FROM schedule
WHERE schedule.name IN (SELECT given.name
FROM given);

-- insert schedules
INSERT INTO schedule (created_at) VALUES (strftime('%Y-%m-%d %H:%M:%f000', 'now')) ON CONFLICT (name) DO NOTHING;

-- redeclare
UPDATE schedule SET name=?, job_type=?, payload=?, queue=?, cron=?, timezone=?, "offset"=?, catch_up=?, catch_up_limit=?, overlap=? WHERE schedule.id = ? AND schedule.declared_by = ?;

-- retire
WITH given AS MATERIALIZED
(SELECT json_extract("each".value, ?) AS name
FROM json_each(?) AS "each")
 UPDATE schedule SET retired_at=strftime('%Y-%m-%d %H:%M:%f000', 'now') WHERE schedule.declared_by = ? AND schedule.retired_at IS NULL AND (schedule.name NOT IN (SELECT given.name
FROM given)) RETURNING name;

-- revive
WITH given AS MATERIALIZED
(SELECT json_extract("each".value, ?) AS name
FROM json_each(?) AS "each")
 UPDATE schedule SET retired_at=NULL, planned_cron=CASE WHEN (schedule.retired_at <= strftime('%Y-%m-%d %H:%M:%f000', strftime('%Y-%m-%d %H:%M:%f000', 'now'), printf('%+.3f seconds', ?))) THEN NULL ELSE schedule.planned_cron END WHERE schedule.declared_by = ? AND schedule.retired_at IS NOT NULL AND schedule.name IN (SELECT given.name
FROM given) RETURNING name;

-- schedule by name
SELECT schedule.id, schedule."offset" AS "offset", CAST(schedule.name AS TEXT) AS name, CAST(schedule.job_type AS TEXT) AS job_type, CAST(schedule.queue AS TEXT) AS queue, CAST(schedule.cron AS TEXT) AS cron, CAST(schedule.timezone AS TEXT) AS timezone, CAST(schedule.payload AS TEXT) AS payload
FROM schedule
WHERE schedule.name = ?;

-- resume
UPDATE schedule SET enabled=?, planned_cron=CASE WHEN (schedule.enabled IS 0) THEN NULL ELSE schedule.planned_cron END WHERE schedule.name = ? RETURNING id;

-- all names
SELECT schedule.name
FROM schedule ORDER BY schedule.name;

-- listed schedules
SELECT schedule.id, CAST(schedule.enabled AS TEXT) AS enabled, schedule.catch_up_limit, schedule.slots_missed, schedule.overlaps_skipped, CAST(schedule.name AS TEXT) AS name, CAST(schedule.job_type AS TEXT) AS job_type, CAST(schedule.queue AS TEXT) AS queue, CAST(schedule.cron AS TEXT) AS cron, CAST(schedule.timezone AS TEXT) AS timezone, CAST(schedule.catch_up AS TEXT) AS catch_up, CAST(schedule.overlap AS TEXT) AS overlap, CAST(schedule.declared_by AS TEXT) AS declared_by, CAST(schedule.last_error AS TEXT) AS last_error, CAST(schedule.payload AS TEXT) AS payload, round((julianday(schedule.next_run_at) - 2440587.5) * 86400.0, 3) AS next_run_at, round((julianday(schedule.last_slot) - 2440587.5) * 86400.0, 3) AS last_slot, round((julianday(schedule.retired_at) - 2440587.5) * 86400.0, 3) AS retired_at, round((julianday(schedule.created_at) - 2440587.5) * 86400.0, 3) AS created_at, schedule."offset" AS "offset"
FROM schedule
WHERE ? IS NULL OR schedule.name > ? ORDER BY schedule.name
 LIMIT ? OFFSET ?;

-- archived jobs by key
SELECT archived_job.idempotency_key, archived_job.id
FROM archived_job
WHERE archived_job.idempotency_key IN (__[POSTCOMPILE_idempotency_key_1]);

-- window of dead letters
WITH first_rows AS
(SELECT w.id AS id, w.at AS at
FROM (SELECT anon_1.id AS id, anon_1.at AS at
FROM (SELECT job.id AS id, job.finished_at AS at
FROM job
WHERE job.status = 'failed' AND job.status IN ('done', 'failed', 'dead') AND job.finished_at IS NOT NULL ORDER BY job.finished_at DESC, job.id DESC
 LIMIT ? OFFSET ?) AS anon_1 UNION ALL SELECT anon_2.id AS id, anon_2.at AS at
FROM (SELECT job.id AS id, job.finished_at AS at
FROM job
WHERE job.status = 'dead' AND job.status IN ('done', 'failed', 'dead') AND job.finished_at IS NOT NULL ORDER BY job.finished_at DESC, job.id DESC
 LIMIT ? OFFSET ?) AS anon_2) AS w ORDER BY w.at DESC, w.id DESC
 LIMIT ? OFFSET ?)
 SELECT job.id, job.attempts, job.max_attempts, CAST(job.type AS TEXT) AS type, CAST(job.queue AS TEXT) AS queue, CAST(job.status AS TEXT) AS status, CAST(job.locked_by AS TEXT) AS locked_by, round((julianday(job.run_at) - 2440587.5) * 86400.0, 3) AS run_at, round((julianday(job.created_at) - 2440587.5) * 86400.0, 3) AS created_at, round((julianday(job.started_at) - 2440587.5) * 86400.0, 3) AS started_at, round((julianday(job.finished_at) - 2440587.5) * 86400.0, 3) AS finished_at, round((julianday(job.locked_until) - 2440587.5) * 86400.0, 3) AS locked_until, CAST(first_rows.at AS TEXT) AS at, 1 = 1 AS matches, CASE WHEN 1 = 1 THEN CAST(job.last_error AS TEXT) END AS last_error
FROM first_rows JOIN job ON job.id = first_rows.id ORDER BY first_rows.at DESC, first_rows.id DESC;

-- next window of dead letters
WITH first_rows AS
(SELECT w.id AS id, w.at AS at
FROM (SELECT anon_1.id AS id, anon_1.at AS at
FROM (SELECT job.id AS id, job.finished_at AS at
FROM job
WHERE job.status = 'failed' AND job.status IN ('done', 'failed', 'dead') AND job.finished_at IS NOT NULL AND job.finished_at <= strftime('%Y-%m-%d %H:%M:%f000', strftime('%Y-%m-%d %H:%M:%f000', 'now'), printf('%+.3f seconds', ?)) AND (job.finished_at, job.id) < (?, ?) ORDER BY job.finished_at DESC, job.id DESC
 LIMIT ? OFFSET ?) AS anon_1 UNION ALL SELECT anon_2.id AS id, anon_2.at AS at
FROM (SELECT job.id AS id, job.finished_at AS at
FROM job
WHERE job.status = 'dead' AND job.status IN ('done', 'failed', 'dead') AND job.finished_at IS NOT NULL AND job.finished_at <= strftime('%Y-%m-%d %H:%M:%f000', strftime('%Y-%m-%d %H:%M:%f000', 'now'), printf('%+.3f seconds', ?)) AND (job.finished_at, job.id) < (?, ?) ORDER BY job.finished_at DESC, job.id DESC
 LIMIT ? OFFSET ?) AS anon_2) AS w ORDER BY w.at DESC, w.id DESC
 LIMIT ? OFFSET ?)
 SELECT job.id, job.attempts, job.max_attempts, CAST(job.type AS TEXT) AS type, CAST(job.queue AS TEXT) AS queue, CAST(job.status AS TEXT) AS status, CAST(job.locked_by AS TEXT) AS locked_by, round((julianday(job.run_at) - 2440587.5) * 86400.0, 3) AS run_at, round((julianday(job.created_at) - 2440587.5) * 86400.0, 3) AS created_at, round((julianday(job.started_at) - 2440587.5) * 86400.0, 3) AS started_at, round((julianday(job.finished_at) - 2440587.5) * 86400.0, 3) AS finished_at, round((julianday(job.locked_until) - 2440587.5) * 86400.0, 3) AS locked_until, CAST(first_rows.at AS TEXT) AS at, job.type = ? AND (lower(coalesce(job.last_error, ?)) LIKE '%' || lower(?) || '%' ESCAPE '/') AS matches, CASE WHEN (job.type = ? AND (lower(coalesce(job.last_error, ?)) LIKE '%' || lower(?) || '%' ESCAPE '/')) THEN CAST(job.last_error AS TEXT) END AS last_error
FROM first_rows JOIN job ON job.id = first_rows.id ORDER BY first_rows.at DESC, first_rows.id DESC;

-- window of rows ended by hand
WITH first_rows AS
(SELECT w.id AS id, w.at AS at
FROM (SELECT job.id AS id, NULL AS at
FROM job
WHERE job.status = 'dead' AND job.status IN ('done', 'failed', 'dead') AND job.finished_at IS NULL AND job.id < ? ORDER BY job.finished_at DESC, job.id DESC
 LIMIT ? OFFSET ?) AS w ORDER BY w.at DESC, w.id DESC
 LIMIT ? OFFSET ?)
 SELECT job.id, job.attempts, job.max_attempts, CAST(job.type AS TEXT) AS type, CAST(job.queue AS TEXT) AS queue, CAST(job.status AS TEXT) AS status, CAST(job.locked_by AS TEXT) AS locked_by, round((julianday(job.run_at) - 2440587.5) * 86400.0, 3) AS run_at, round((julianday(job.created_at) - 2440587.5) * 86400.0, 3) AS created_at, round((julianday(job.started_at) - 2440587.5) * 86400.0, 3) AS started_at, round((julianday(job.finished_at) - 2440587.5) * 86400.0, 3) AS finished_at, round((julianday(job.locked_until) - 2440587.5) * 86400.0, 3) AS locked_until, CAST(first_rows.at AS TEXT) AS at, 1 = 1 AS matches, CASE WHEN 1 = 1 THEN CAST(job.last_error AS TEXT) END AS last_error
FROM first_rows JOIN job ON job.id = first_rows.id ORDER BY first_rows.at DESC, first_rows.id DESC;

-- window of a lane
WITH first_rows AS
(SELECT w.id AS id, w.at AS at
FROM (SELECT job.id AS id, job.run_at AS at
FROM job
WHERE job.status = 'ready' AND job.queue = ? AND job.type = ? AND (job.run_at, job.id) > (?, ?) ORDER BY job.run_at, job.id
 LIMIT ? OFFSET ?) AS w ORDER BY w.at, w.id
 LIMIT ? OFFSET ?)
 SELECT job.id, job.attempts, job.max_attempts, CAST(job.type AS TEXT) AS type, CAST(job.queue AS TEXT) AS queue, CAST(job.status AS TEXT) AS status, CAST(job.locked_by AS TEXT) AS locked_by, round((julianday(job.run_at) - 2440587.5) * 86400.0, 3) AS run_at, round((julianday(job.created_at) - 2440587.5) * 86400.0, 3) AS created_at, round((julianday(job.started_at) - 2440587.5) * 86400.0, 3) AS started_at, round((julianday(job.finished_at) - 2440587.5) * 86400.0, 3) AS finished_at, round((julianday(job.locked_until) - 2440587.5) * 86400.0, 3) AS locked_until, CAST(first_rows.at AS TEXT) AS at, 1 = 1 AS matches, CASE WHEN 1 = 1 THEN CAST(job.last_error AS TEXT) END AS last_error
FROM first_rows JOIN job ON job.id = first_rows.id ORDER BY first_rows.at, first_rows.id;

-- window of running jobs
WITH first_rows AS
(SELECT w.id AS id, w.at AS at
FROM (SELECT job.id AS id, job.locked_by AS at
FROM job
WHERE job.status = 'running' AND job.locked_by IS NOT NULL AND (job.locked_by, job.id) > (?, ?) ORDER BY job.locked_by, job.id
 LIMIT ? OFFSET ?) AS w ORDER BY w.at, w.id
 LIMIT ? OFFSET ?)
 SELECT job.id, job.attempts, job.max_attempts, CAST(job.type AS TEXT) AS type, CAST(job.queue AS TEXT) AS queue, CAST(job.status AS TEXT) AS status, CAST(job.locked_by AS TEXT) AS locked_by, round((julianday(job.run_at) - 2440587.5) * 86400.0, 3) AS run_at, round((julianday(job.created_at) - 2440587.5) * 86400.0, 3) AS created_at, round((julianday(job.started_at) - 2440587.5) * 86400.0, 3) AS started_at, round((julianday(job.finished_at) - 2440587.5) * 86400.0, 3) AS finished_at, round((julianday(job.locked_until) - 2440587.5) * 86400.0, 3) AS locked_until, CAST(first_rows.at AS TEXT) AS at, 1 = 1 AS matches, CASE WHEN 1 = 1 THEN CAST(job.last_error AS TEXT) END AS last_error
FROM first_rows JOIN job ON job.id = first_rows.id ORDER BY first_rows.at, first_rows.id;

-- window of one key
WITH of_key AS MATERIALIZED
(SELECT job.id AS id
FROM job
WHERE job.idempotency_key = ?),
first_rows AS
(SELECT w.id AS id, w.at AS at
FROM (SELECT of_key.id AS id, NULL AS at
FROM of_key ORDER BY of_key.id DESC
 LIMIT ? OFFSET ?) AS w ORDER BY w.at DESC, w.id DESC
 LIMIT ? OFFSET ?)
 SELECT job.id, job.attempts, job.max_attempts, CAST(job.type AS TEXT) AS type, CAST(job.queue AS TEXT) AS queue, CAST(job.status AS TEXT) AS status, CAST(job.locked_by AS TEXT) AS locked_by, round((julianday(job.run_at) - 2440587.5) * 86400.0, 3) AS run_at, round((julianday(job.created_at) - 2440587.5) * 86400.0, 3) AS created_at, round((julianday(job.started_at) - 2440587.5) * 86400.0, 3) AS started_at, round((julianday(job.finished_at) - 2440587.5) * 86400.0, 3) AS finished_at, round((julianday(job.locked_until) - 2440587.5) * 86400.0, 3) AS locked_until, CAST(first_rows.at AS TEXT) AS at, job.status = 'ready' OR job.status = 'running' OR job.status = 'done' OR job.status = 'failed' OR job.status = 'dead' AS matches, CASE WHEN (job.status = 'ready' OR job.status = 'running' OR job.status = 'done' OR job.status = 'failed' OR job.status = 'dead') THEN CAST(job.last_error AS TEXT) END AS last_error
FROM first_rows JOIN job ON job.id = first_rows.id ORDER BY first_rows.at DESC, first_rows.id DESC;

-- window of archived jobs
WITH first_rows AS
(SELECT w.id AS id, w.at AS at
FROM (SELECT archived_job.id AS id, archived_job.archived_at AS at
FROM archived_job
WHERE archived_job.archived_at IS NOT NULL ORDER BY archived_job.archived_at DESC, archived_job.id DESC
 LIMIT ? OFFSET ?) AS w ORDER BY w.at DESC, w.id DESC
 LIMIT ? OFFSET ?)
 SELECT archived_job.id, archived_job.attempts, archived_job.max_attempts, CAST(archived_job.type AS TEXT) AS type, CAST(archived_job.queue AS TEXT) AS queue, CAST(archived_job.status AS TEXT) AS status, CAST(archived_job.locked_by AS TEXT) AS locked_by, round((julianday(archived_job.run_at) - 2440587.5) * 86400.0, 3) AS run_at, round((julianday(archived_job.created_at) - 2440587.5) * 86400.0, 3) AS created_at, round((julianday(archived_job.started_at) - 2440587.5) * 86400.0, 3) AS started_at, round((julianday(archived_job.finished_at) - 2440587.5) * 86400.0, 3) AS finished_at, round((julianday(archived_job.locked_until) - 2440587.5) * 86400.0, 3) AS locked_until, round((julianday(archived_job.archived_at) - 2440587.5) * 86400.0, 3) AS archived_at, CAST(first_rows.at AS TEXT) AS at, archived_job.status = 'dead' OR archived_job.status = 'failed' AS matches, CASE WHEN (archived_job.status = 'dead' OR archived_job.status = 'failed') THEN CAST(archived_job.last_error AS TEXT) END AS last_error
FROM first_rows JOIN archived_job ON archived_job.id = first_rows.id ORDER BY first_rows.at DESC, first_rows.id DESC;

-- next window of archived jobs
WITH first_rows AS
(SELECT w.id AS id, w.at AS at
FROM (SELECT archived_job.id AS id, archived_job.archived_at AS at
FROM archived_job
WHERE archived_job.archived_at IS NOT NULL AND (archived_job.archived_at, archived_job.id) < (?, ?) ORDER BY archived_job.archived_at DESC, archived_job.id DESC
 LIMIT ? OFFSET ?) AS w ORDER BY w.at DESC, w.id DESC
 LIMIT ? OFFSET ?)
 SELECT archived_job.id, archived_job.attempts, archived_job.max_attempts, CAST(archived_job.type AS TEXT) AS type, CAST(archived_job.queue AS TEXT) AS queue, CAST(archived_job.status AS TEXT) AS status, CAST(archived_job.locked_by AS TEXT) AS locked_by, round((julianday(archived_job.run_at) - 2440587.5) * 86400.0, 3) AS run_at, round((julianday(archived_job.created_at) - 2440587.5) * 86400.0, 3) AS created_at, round((julianday(archived_job.started_at) - 2440587.5) * 86400.0, 3) AS started_at, round((julianday(archived_job.finished_at) - 2440587.5) * 86400.0, 3) AS finished_at, round((julianday(archived_job.locked_until) - 2440587.5) * 86400.0, 3) AS locked_until, round((julianday(archived_job.archived_at) - 2440587.5) * 86400.0, 3) AS archived_at, CAST(first_rows.at AS TEXT) AS at, (archived_job.status = 'done' AND archived_job.finished_at >= strftime('%Y-%m-%d %H:%M:%f000', strftime('%Y-%m-%d %H:%M:%f000', 'now'), printf('%+.3f seconds', ?)) OR archived_job.status = 'dead' AND archived_job.finished_at >= strftime('%Y-%m-%d %H:%M:%f000', strftime('%Y-%m-%d %H:%M:%f000', 'now'), printf('%+.3f seconds', ?))) AND archived_job.queue = ? AS matches, CASE WHEN ((archived_job.status = 'done' AND archived_job.finished_at >= strftime('%Y-%m-%d %H:%M:%f000', strftime('%Y-%m-%d %H:%M:%f000', 'now'), printf('%+.3f seconds', ?)) OR archived_job.status = 'dead' AND archived_job.finished_at >= strftime('%Y-%m-%d %H:%M:%f000', strftime('%Y-%m-%d %H:%M:%f000', 'now'), printf('%+.3f seconds', ?))) AND archived_job.queue = ?) THEN CAST(archived_job.last_error AS TEXT) END AS last_error
FROM first_rows JOIN archived_job ON archived_job.id = first_rows.id ORDER BY first_rows.at DESC, first_rows.id DESC;

-- next window of archived jobs of one key
WITH of_key AS MATERIALIZED
(SELECT archived_job.id AS id
FROM archived_job
WHERE archived_job.idempotency_key = ?),
first_rows AS
(SELECT w.id AS id, w.at AS at
FROM (SELECT of_key.id AS id, NULL AS at
FROM of_key
WHERE of_key.id < ? ORDER BY of_key.id DESC
 LIMIT ? OFFSET ?) AS w ORDER BY w.at DESC, w.id DESC
 LIMIT ? OFFSET ?)
 SELECT archived_job.id, archived_job.attempts, archived_job.max_attempts, CAST(archived_job.type AS TEXT) AS type, CAST(archived_job.queue AS TEXT) AS queue, CAST(archived_job.status AS TEXT) AS status, CAST(archived_job.locked_by AS TEXT) AS locked_by, round((julianday(archived_job.run_at) - 2440587.5) * 86400.0, 3) AS run_at, round((julianday(archived_job.created_at) - 2440587.5) * 86400.0, 3) AS created_at, round((julianday(archived_job.started_at) - 2440587.5) * 86400.0, 3) AS started_at, round((julianday(archived_job.finished_at) - 2440587.5) * 86400.0, 3) AS finished_at, round((julianday(archived_job.locked_until) - 2440587.5) * 86400.0, 3) AS locked_until, round((julianday(archived_job.archived_at) - 2440587.5) * 86400.0, 3) AS archived_at, CAST(first_rows.at AS TEXT) AS at, archived_job.status = 'ready' OR archived_job.status = 'running' OR archived_job.status = 'done' OR archived_job.status = 'failed' OR archived_job.status = 'dead' AS matches, CASE WHEN (archived_job.status = 'ready' OR archived_job.status = 'running' OR archived_job.status = 'done' OR archived_job.status = 'failed' OR archived_job.status = 'dead') THEN CAST(archived_job.last_error AS TEXT) END AS last_error
FROM first_rows JOIN archived_job ON archived_job.id = first_rows.id ORDER BY first_rows.at DESC, first_rows.id DESC;

-- lanes
WITH RECURSIVE lane(queue, type, run_at) AS
(SELECT first.queue AS queue, first.type AS type, first.run_at AS run_at
FROM (SELECT next_row.queue AS queue, next_row.type AS type, next_row.run_at AS run_at
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue >= '' ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1 OFFSET ?) AS first UNION ALL SELECT lane_row.queue AS queue, lane_row.type AS type, lane_row.run_at AS run_at
FROM lane JOIN job AS lane_row ON lane_row.id = coalesce((SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue = lane.queue AND next_row.type > lane.type ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1 OFFSET ?), (SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue > lane.queue ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1 OFFSET ?)))
 SELECT lane.queue, lane.type
FROM lane ORDER BY lane.queue, lane.type;

-- details
SELECT job.id, job.attempts, job.max_attempts, CAST(job.type AS TEXT) AS type, CAST(job.queue AS TEXT) AS queue, CAST(job.status AS TEXT) AS status, CAST(job.locked_by AS TEXT) AS locked_by, round((julianday(job.run_at) - 2440587.5) * 86400.0, 3) AS run_at, round((julianday(job.created_at) - 2440587.5) * 86400.0, 3) AS created_at, round((julianday(job.started_at) - 2440587.5) * 86400.0, 3) AS started_at, round((julianday(job.finished_at) - 2440587.5) * 86400.0, 3) AS finished_at, round((julianday(job.locked_until) - 2440587.5) * 86400.0, 3) AS locked_until, job.refunds, job.claims, job.lease_expirations, job.schedule_id, CAST(job.payload AS TEXT) AS payload, CAST(job.last_error AS TEXT) AS last_error, CAST(job.errors AS TEXT) AS errors, CAST(job.result AS TEXT) AS result, CAST(job.idempotency_key AS TEXT) AS idempotency_key, CAST(job.trace AS TEXT) AS trace, round((julianday(job.last_lease_expired_at) - 2440587.5) * 86400.0, 3) AS last_lease_expired_at, round((julianday(job.slot) - 2440587.5) * 86400.0, 3) AS slot, round((julianday(strftime('%Y-%m-%d %H:%M:%f000', 'now')) - 2440587.5) * 86400.0, 3) AS now, job.run_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now') AS is_due, coalesce(job.locked_until <= strftime('%Y-%m-%d %H:%M:%f000', 'now'), 1) AS is_lease_over
FROM job
WHERE job.id = ?;

-- details of an archived job
SELECT archived_job.id, archived_job.attempts, archived_job.max_attempts, CAST(archived_job.type AS TEXT) AS type, CAST(archived_job.queue AS TEXT) AS queue, CAST(archived_job.status AS TEXT) AS status, CAST(archived_job.locked_by AS TEXT) AS locked_by, round((julianday(archived_job.run_at) - 2440587.5) * 86400.0, 3) AS run_at, round((julianday(archived_job.created_at) - 2440587.5) * 86400.0, 3) AS created_at, round((julianday(archived_job.started_at) - 2440587.5) * 86400.0, 3) AS started_at, round((julianday(archived_job.finished_at) - 2440587.5) * 86400.0, 3) AS finished_at, round((julianday(archived_job.locked_until) - 2440587.5) * 86400.0, 3) AS locked_until, round((julianday(archived_job.archived_at) - 2440587.5) * 86400.0, 3) AS archived_at, archived_job.refunds, archived_job.claims, archived_job.lease_expirations, archived_job.schedule_id, CAST(archived_job.payload AS TEXT) AS payload, CAST(archived_job.last_error AS TEXT) AS last_error, CAST(archived_job.errors AS TEXT) AS errors, CAST(archived_job.result AS TEXT) AS result, CAST(archived_job.idempotency_key AS TEXT) AS idempotency_key, CAST(archived_job.trace AS TEXT) AS trace, round((julianday(archived_job.last_lease_expired_at) - 2440587.5) * 86400.0, 3) AS last_lease_expired_at, round((julianday(archived_job.slot) - 2440587.5) * 86400.0, 3) AS slot, round((julianday(strftime('%Y-%m-%d %H:%M:%f000', 'now')) - 2440587.5) * 86400.0, 3) AS now, archived_job.run_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now') AS is_due, coalesce(archived_job.locked_until <= strftime('%Y-%m-%d %H:%M:%f000', 'now'), 1) AS is_lease_over
FROM archived_job
WHERE archived_job.id = ?;

-- jobs ahead
WITH RECURSIVE lane(queue, type, run_at) AS
(SELECT first.queue AS queue, first.type AS type, first.run_at AS run_at
FROM (SELECT next_row.queue AS queue, next_row.type AS type, next_row.run_at AS run_at
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue >= '' ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1 OFFSET ?) AS first UNION ALL SELECT lane_row.queue AS queue, lane_row.type AS type, lane_row.run_at AS run_at
FROM lane JOIN job AS lane_row ON lane_row.id = coalesce((SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue = lane.queue AND next_row.type > lane.type ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1 OFFSET ?), (SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue > lane.queue ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1 OFFSET ?)))
 SELECT lane.type, (SELECT count(*) AS count_1
FROM (SELECT earlier.id AS id
FROM job AS earlier
WHERE earlier.status = 'ready' AND earlier.queue = lane.queue AND earlier.type = lane.type AND earlier.run_at <= (SELECT own.run_at
FROM job AS own
WHERE own.id = ?) AND (earlier.run_at < (SELECT own.run_at
FROM job AS own
WHERE own.id = ?) OR earlier.id < ?)
 LIMIT ? OFFSET ?) AS some) AS ahead
FROM lane
WHERE lane.queue = ?;

-- requeue
WITH given AS MATERIALIZED
(SELECT json_extract("each".value, ?) AS id
FROM json_each(?) AS "each"),
held AS MATERIALIZED
(SELECT job.id AS id
FROM job
WHERE job.id IN (SELECT given.id
FROM given) AND job.status IN ('dead', 'failed') ORDER BY job.id)
 UPDATE job SET status='ready', run_at=strftime('%Y-%m-%d %H:%M:%f000', 'now'), attempts=?, max_attempts=coalesce(?, job.max_attempts), refunds=?, locked_by=NULL, locked_until=NULL, finished_at=NULL WHERE job.id IN (SELECT held.id
FROM held) RETURNING id, queue;

-- requeue a batch
WITH given AS MATERIALIZED
(SELECT json_extract("each".value, ?) AS id
FROM json_each(?) AS "each"),
held AS MATERIALIZED
(SELECT job.id AS id
FROM job
WHERE job.id IN (SELECT given.id
FROM given) AND job.status IN ('dead') ORDER BY job.id)
 UPDATE job SET status='ready', run_at=strftime('%Y-%m-%d %H:%M:%f000', 'now'), attempts=?, max_attempts=coalesce(?, job.max_attempts), refunds=?, locked_by=NULL, locked_until=NULL, finished_at=NULL WHERE job.id IN (SELECT held.id
FROM held) RETURNING id, queue;

-- cancel
WITH given AS MATERIALIZED
(SELECT json_extract("each".value, ?) AS id
FROM json_each(?) AS "each"),
held AS MATERIALIZED
(SELECT job.id AS id
FROM job
WHERE job.id IN (SELECT given.id
FROM given) AND job.status IN ('ready') ORDER BY job.id)
 UPDATE job SET status=?, locked_until=NULL, last_error=?, finished_at=strftime('%Y-%m-%d %H:%M:%f000', 'now') WHERE job.id IN (SELECT held.id
FROM held) RETURNING id, queue;

-- remove
WITH given AS MATERIALIZED
(SELECT json_extract("each".value, ?) AS id
FROM json_each(?) AS "each"),
held AS MATERIALIZED
(SELECT job.id AS id
FROM job
WHERE job.id IN (SELECT given.id
FROM given) AND job.status IN ('dead', 'failed') ORDER BY job.id)
 DELETE FROM job WHERE job.id IN (SELECT held.id
FROM held) RETURNING id, queue;

-- statuses
WITH given AS MATERIALIZED
(SELECT json_extract("each".value, ?) AS id
FROM json_each(?) AS "each")
 SELECT job.id, CAST(job.status AS TEXT) AS status
FROM job
WHERE job.id IN (SELECT given.id
FROM given);

-- lane counts
WITH RECURSIVE lane(queue, type, run_at) AS
(SELECT first.queue AS queue, first.type AS type, first.run_at AS run_at
FROM (SELECT next_row.queue AS queue, next_row.type AS type, next_row.run_at AS run_at
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue >= '' ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1 OFFSET ?) AS first UNION ALL SELECT lane_row.queue AS queue, lane_row.type AS type, lane_row.run_at AS run_at
FROM lane JOIN job AS lane_row ON lane_row.id = coalesce((SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue = lane.queue AND next_row.type > lane.type ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1 OFFSET ?), (SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue > lane.queue ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1 OFFSET ?))),
some_lane AS
(SELECT lane.queue AS queue, lane.type AS type
FROM lane
 LIMIT ? OFFSET ?)
 SELECT CAST(some_lane.queue AS TEXT) AS queue, CAST(some_lane.type AS TEXT) AS type, (SELECT count(*) AS count_1
FROM (SELECT first_rows.id AS id, first_rows.run_at AS run_at
FROM (SELECT ready_row.id AS id, ready_row.run_at AS run_at
FROM job AS ready_row
WHERE ready_row.status = 'ready' AND ready_row.queue = some_lane.queue AND ready_row.type = some_lane.type AND ready_row.run_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now') ORDER BY ready_row.run_at, ready_row.id
 LIMIT ? OFFSET ?) AS first_rows
 LIMIT CASE WHEN ((SELECT count(*) AS count_2
FROM some_lane) <= ?) THEN ? ELSE (? * ?) / (SELECT count(*) AS count_2
FROM some_lane) + ? END OFFSET ?) AS some) AS due, (SELECT count(*) AS count_3
FROM (SELECT first_rows.id AS id, first_rows.run_at AS run_at
FROM (SELECT ready_row.id AS id, ready_row.run_at AS run_at
FROM job AS ready_row
WHERE ready_row.status = 'ready' AND ready_row.queue = some_lane.queue AND ready_row.type = some_lane.type AND ready_row.run_at > strftime('%Y-%m-%d %H:%M:%f000', 'now') ORDER BY ready_row.run_at, ready_row.id
 LIMIT ? OFFSET ?) AS first_rows
 LIMIT CASE WHEN ((SELECT count(*) AS count_2
FROM some_lane) <= ?) THEN ? ELSE (? * ?) / (SELECT count(*) AS count_2
FROM some_lane) + ? END OFFSET ?) AS some) AS later, round((julianday(strftime('%Y-%m-%d %H:%M:%f000', 'now')) - 2440587.5) * 86400.0, 3) - round((julianday((SELECT ready_row.run_at
FROM job AS ready_row
WHERE ready_row.status = 'ready' AND ready_row.queue = some_lane.queue AND ready_row.type = some_lane.type AND ready_row.run_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now') ORDER BY ready_row.run_at, ready_row.id
 LIMIT 1 OFFSET ?)) - 2440587.5) * 86400.0, 3) AS age, CASE WHEN ((SELECT count(*) AS count_2
FROM some_lane) <= ?) THEN ? ELSE (? * ?) / (SELECT count(*) AS count_2
FROM some_lane) + ? END AS most
FROM some_lane;

-- tallies
WITH RECURSIVE lane(queue, type, run_at) AS
(SELECT first.queue AS queue, first.type AS type, first.run_at AS run_at
FROM (SELECT next_row.queue AS queue, next_row.type AS type, next_row.run_at AS run_at
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue >= '' ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1 OFFSET ?) AS first UNION ALL SELECT lane_row.queue AS queue, lane_row.type AS type, lane_row.run_at AS run_at
FROM lane JOIN job AS lane_row ON lane_row.id = coalesce((SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue = lane.queue AND next_row.type > lane.type ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1 OFFSET ?), (SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue > lane.queue ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1 OFFSET ?))),
some_lane AS
(SELECT lane.queue AS queue, lane.type AS type
FROM lane
 LIMIT ? OFFSET ?)
 SELECT CAST(? AS TEXT) AS part, ready_rows.queue, ready_rows.type, ready_rows.attempts, count(*) AS number, CASE WHEN ((SELECT count(*) AS count_1
FROM some_lane) <= ?) THEN ? ELSE (? * ?) / (SELECT count(*) AS count_1
FROM some_lane) + ? END AS most
FROM (SELECT CAST(sampled.queue AS TEXT) AS queue, CAST(sampled.type AS TEXT) AS type, CAST(sampled.attempts AS INTEGER) AS attempts
FROM some_lane JOIN job AS sampled ON sampled.id IN (SELECT first_rows.id
FROM (SELECT ready_row.id AS id
FROM job AS ready_row
WHERE ready_row.status = 'ready' AND ready_row.queue = some_lane.queue AND ready_row.type = some_lane.type ORDER BY ready_row.run_at, ready_row.id
 LIMIT ? OFFSET ?) AS first_rows
 LIMIT CASE WHEN ((SELECT count(*) AS count_1
FROM some_lane) <= ?) THEN ? ELSE (? * ?) / (SELECT count(*) AS count_1
FROM some_lane) + ? END OFFSET ?)) AS ready_rows GROUP BY ready_rows.queue, ready_rows.type, ready_rows.attempts UNION ALL SELECT CAST(? AS TEXT) AS part, running_rows.queue, running_rows.type, running_rows.attempts, count(*) AS number, ? AS most
FROM (SELECT first_rows.queue AS queue, first_rows.type AS type, first_rows.attempts AS attempts
FROM (SELECT CAST(job.queue AS TEXT) AS queue, CAST(job.type AS TEXT) AS type, CAST(job.attempts AS INTEGER) AS attempts
FROM job
WHERE job.status = 'running' ORDER BY job.locked_by, job.id
 LIMIT ? OFFSET ?) AS first_rows
 LIMIT (SELECT ? AS anon_1) OFFSET ?) AS running_rows GROUP BY running_rows.queue, running_rows.type, running_rows.attempts UNION ALL SELECT CAST(? AS TEXT) AS part, failed_rows.queue, failed_rows.type, failed_rows.attempts, count(*) AS number, ? AS most
FROM (SELECT first_rows.queue AS queue, first_rows.type AS type, first_rows.attempts AS attempts
FROM (SELECT CAST(NULL AS TEXT) AS queue, CAST(job.type AS TEXT) AS type, CAST(NULL AS INTEGER) AS attempts
FROM job
WHERE job.status IN ('done', 'failed', 'dead') AND job.status = 'failed' ORDER BY job.finished_at DESC, job.id DESC
 LIMIT ? OFFSET ?) AS first_rows
 LIMIT (SELECT ? AS anon_1) OFFSET ?) AS failed_rows GROUP BY failed_rows.queue, failed_rows.type, failed_rows.attempts UNION ALL SELECT CAST(? AS TEXT) AS part, dead_rows.queue, dead_rows.type, dead_rows.attempts, count(*) AS number, ? AS most
FROM (SELECT first_rows.queue AS queue, first_rows.type AS type, first_rows.attempts AS attempts
FROM (SELECT CAST(NULL AS TEXT) AS queue, CAST(job.type AS TEXT) AS type, CAST(NULL AS INTEGER) AS attempts
FROM job
WHERE job.status IN ('done', 'failed', 'dead') AND job.status = 'dead' ORDER BY job.finished_at DESC, job.id DESC
 LIMIT ? OFFSET ?) AS first_rows
 LIMIT (SELECT ? AS anon_1) OFFSET ?) AS dead_rows GROUP BY dead_rows.queue, dead_rows.type, dead_rows.attempts UNION ALL SELECT CAST(? AS TEXT) AS part, expired_rows.queue, expired_rows.type, expired_rows.attempts, count(*) AS number, ? AS most
FROM (SELECT first_rows.queue AS queue, first_rows.type AS type, first_rows.attempts AS attempts
FROM (SELECT CAST(NULL AS TEXT) AS queue, CAST(NULL AS TEXT) AS type, CAST(NULL AS INTEGER) AS attempts
FROM job
WHERE job.last_lease_expired_at IS NOT NULL AND job.last_lease_expired_at > strftime('%Y-%m-%d %H:%M:%f000', strftime('%Y-%m-%d %H:%M:%f000', 'now'), printf('%+.3f seconds', ?)) AND job.last_lease_expired_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now') ORDER BY job.last_lease_expired_at
 LIMIT ? OFFSET ?) AS first_rows
 LIMIT (SELECT ? AS anon_1) OFFSET ?) AS expired_rows GROUP BY expired_rows.queue, expired_rows.type, expired_rows.attempts;

-- oldest running
WITH running_row AS
(SELECT first_rows.id AS id, first_rows.type AS type, first_rows.queue AS queue, first_rows.locked_by AS locked_by, first_rows.started_at AS started_at, first_rows.locked_until AS locked_until, first_rows.is_over AS is_over
FROM (SELECT job.id AS id, CAST(job.type AS TEXT) AS type, CAST(job.queue AS TEXT) AS queue, CAST(job.locked_by AS TEXT) AS locked_by, round((julianday(job.started_at) - 2440587.5) * 86400.0, 3) AS started_at, round((julianday(job.locked_until) - 2440587.5) * 86400.0, 3) AS locked_until, coalesce(job.locked_until <= strftime('%Y-%m-%d %H:%M:%f000', 'now'), 1) AS is_over
FROM job
WHERE job.status = 'running' ORDER BY job.locked_by, job.id
 LIMIT ? OFFSET ?) AS first_rows
 LIMIT (SELECT ? AS anon_1) OFFSET ?)
 SELECT clock.now, (SELECT count(*) AS count_1
FROM running_row
WHERE running_row.is_over = 1) AS over, clock.now - oldest.started_at AS age, oldest.id, oldest.type, oldest.queue, oldest.locked_by, oldest.started_at, oldest.locked_until, oldest.is_over
FROM (SELECT round((julianday(strftime('%Y-%m-%d %H:%M:%f000', 'now')) - 2440587.5) * 86400.0, 3) AS now) AS clock LEFT OUTER JOIN (SELECT running_row.id AS id, running_row.type AS type, running_row.queue AS queue, running_row.locked_by AS locked_by, running_row.started_at AS started_at, running_row.locked_until AS locked_until, running_row.is_over AS is_over
FROM running_row ORDER BY running_row.started_at NULLS LAST, running_row.id
 LIMIT 1 OFFSET ?) AS oldest ON 1 = 1;

-- schedule counts
SELECT schedule_row.state, schedule_row.has_error, count(*) AS number, sum(schedule_row.slots_missed) AS slots_missed, sum(schedule_row.overlaps_skipped) AS overlaps_skipped
FROM (SELECT CASE WHEN (schedule.retired_at IS NOT NULL) THEN ? WHEN (lower(CAST(schedule.enabled AS TEXT)) IN (__[POSTCOMPILE_lower_1])) THEN ? ELSE ? END AS state, schedule.last_error IS NOT NULL AS has_error, CAST(schedule.slots_missed AS DOUBLE) AS slots_missed, CAST(schedule.overlaps_skipped AS DOUBLE) AS overlaps_skipped
FROM schedule ORDER BY schedule.id
 LIMIT ? OFFSET ?) AS schedule_row GROUP BY schedule_row.state, schedule_row.has_error;

-- finished
SELECT job.id, CAST(job.finished_at AS TEXT) AS at
FROM job
WHERE job.status = 'done' AND job.status IN ('done', 'failed', 'dead') AND job.finished_at <= strftime('%Y-%m-%d %H:%M:%f000', strftime('%Y-%m-%d %H:%M:%f000', 'now'), printf('%+.3f seconds', -?)) AND (job.finished_at, job.id) > (?, ?) ORDER BY job.finished_at, job.id
 LIMIT ? OFFSET ?;

-- finished, locked
SELECT job.id, CAST(job.finished_at AS TEXT) AS at
FROM job
WHERE job.status = 'done' AND job.status IN ('done', 'failed', 'dead') AND job.finished_at <= strftime('%Y-%m-%d %H:%M:%f000', strftime('%Y-%m-%d %H:%M:%f000', 'now'), printf('%+.3f seconds', -?)) AND (job.finished_at, job.id) > (?, ?) ORDER BY job.finished_at, job.id
 LIMIT ? OFFSET ?;

-- finished, counted
SELECT count(*) AS count_1
FROM (SELECT job.id AS id, CAST(job.finished_at AS TEXT) AS at
FROM job
WHERE job.status = 'done' AND job.status IN ('done', 'failed', 'dead') AND job.finished_at <= strftime('%Y-%m-%d %H:%M:%f000', strftime('%Y-%m-%d %H:%M:%f000', 'now'), printf('%+.3f seconds', -?)) ORDER BY job.finished_at, job.id
 LIMIT ? OFFSET ?) AS some;

-- undated
SELECT job.id, CAST(job.finished_at AS TEXT) AS at
FROM job
WHERE job.status = 'dead' AND job.status IN ('done', 'failed', 'dead') AND job.finished_at IS NULL ORDER BY job.finished_at, job.id
 LIMIT ? OFFSET ?;

-- date
WITH given AS MATERIALIZED
(SELECT json_extract("each".value, ?) AS id
FROM json_each(?) AS "each")
 UPDATE job SET finished_at=strftime('%Y-%m-%d %H:%M:%f000', 'now') WHERE job.id IN (SELECT given.id
FROM given);

-- copy
WITH given AS MATERIALIZED
(SELECT json_extract("each".value, ?) AS id
FROM json_each(?) AS "each")
 INSERT INTO archived_job (archived_at, attempts, claims, created_at, errors, finished_at, id, idempotency_key, last_error, last_lease_expired_at, lease_expirations, locked_by, locked_until, max_attempts, payload, queue, refunds, result, run_at, schedule_id, slot, started_at, status, trace, type) SELECT strftime('%Y-%m-%d %H:%M:%f000', 'now') AS anon_1, job.attempts, job.claims, job.created_at, job.errors, job.finished_at, job.id, job.idempotency_key, job.last_error, job.last_lease_expired_at, job.lease_expirations, job.locked_by, job.locked_until, job.max_attempts, job.payload, job.queue, job.refunds, job.result, job.run_at, job.schedule_id, job.slot, job.started_at, job.status, job.trace, job.type
FROM job
WHERE job.id IN (SELECT given.id
FROM given);

-- remove what was copied
WITH given AS MATERIALIZED
(SELECT json_extract("each".value, ?) AS id
FROM json_each(?) AS "each")
 DELETE FROM job WHERE job.id IN (SELECT given.id
FROM given) RETURNING id;

-- archived
SELECT archived_job.id, CAST(archived_job.archived_at AS TEXT) AS at
FROM archived_job
WHERE archived_job.archived_at <= strftime('%Y-%m-%d %H:%M:%f000', strftime('%Y-%m-%d %H:%M:%f000', 'now'), printf('%+.3f seconds', -?)) AND (archived_job.archived_at, archived_job.id) > (?, ?) ORDER BY archived_job.archived_at, archived_job.id
 LIMIT ? OFFSET ?;
