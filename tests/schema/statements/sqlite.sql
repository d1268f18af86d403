-- claim
WITH RECURSIVE lane(queue, type) AS
(SELECT first.queue AS queue, first.type AS type
FROM (SELECT job.queue AS queue, job.type AS type
FROM job
WHERE job.status = 'ready' ORDER BY job.queue, job.type
 LIMIT ? OFFSET ?) AS first UNION ALL SELECT lane_row.queue AS queue, lane_row.type AS type
FROM lane JOIN job AS lane_row ON lane_row.id = (SELECT following.id
FROM job AS following
WHERE following.status = 'ready' AND (following.queue, following.type) > (lane.queue, lane.type) ORDER BY following.queue, following.type
 LIMIT ? OFFSET ?))
 UPDATE job SET status='running', attempts=(job.attempts + ?), claims=(job.claims + ?), locked_by=?, locked_until=strftime('%Y-%m-%d %H:%M:%f000', strftime('%Y-%m-%d %H:%M:%f000', 'now'), printf('%+.3f seconds', ?)), started_at=strftime('%Y-%m-%d %H:%M:%f000', 'now') WHERE job.id IN (SELECT oldest.id
FROM (SELECT candidate.id AS id
FROM lane JOIN job AS candidate ON candidate.id IN (SELECT due.id
FROM job AS due
WHERE due.status = 'ready' AND due.queue = lane.queue AND due.type = lane.type AND due.run_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now') ORDER BY due.run_at, due.id
 LIMIT ? OFFSET ?)
WHERE lane.type IN (__[POSTCOMPILE_types]) AND lane.queue IN (__[POSTCOMPILE_queues]) ORDER BY candidate.run_at, candidate.id
 LIMIT ? OFFSET ?) AS oldest) RETURNING id, type, queue, CAST(payload AS TEXT) AS payload, attempts, max_attempts, refunds, claims, locked_by, round((julianday(started_at) - 2440587.5) * 86400.0, 3) AS started_at, round((julianday(slot) - 2440587.5) * 86400.0, 3) AS slot, CAST(errors AS TEXT) AS errors, round((julianday(run_at) - 2440587.5) * 86400.0, 3) AS due, NULL AS anon_1;

-- claim from every queue
WITH RECURSIVE lane(queue, type) AS
(SELECT first.queue AS queue, first.type AS type
FROM (SELECT job.queue AS queue, job.type AS type
FROM job
WHERE job.status = 'ready' ORDER BY job.queue, job.type
 LIMIT ? OFFSET ?) AS first UNION ALL SELECT lane_row.queue AS queue, lane_row.type AS type
FROM lane JOIN job AS lane_row ON lane_row.id = (SELECT following.id
FROM job AS following
WHERE following.status = 'ready' AND (following.queue, following.type) > (lane.queue, lane.type) ORDER BY following.queue, following.type
 LIMIT ? OFFSET ?))
 UPDATE job SET status='running', attempts=(job.attempts + ?), claims=(job.claims + ?), locked_by=?, locked_until=strftime('%Y-%m-%d %H:%M:%f000', strftime('%Y-%m-%d %H:%M:%f000', 'now'), printf('%+.3f seconds', ?)), started_at=strftime('%Y-%m-%d %H:%M:%f000', 'now') WHERE job.id IN (SELECT oldest.id
FROM (SELECT candidate.id AS id
FROM lane JOIN job AS candidate ON candidate.id IN (SELECT due.id
FROM job AS due
WHERE due.status = 'ready' AND due.queue = lane.queue AND due.type = lane.type AND due.run_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now') ORDER BY due.run_at, due.id
 LIMIT ? OFFSET ?)
WHERE lane.type IN (__[POSTCOMPILE_types]) ORDER BY candidate.run_at, candidate.id
 LIMIT ? OFFSET ?) AS oldest) RETURNING id, type, queue, CAST(payload AS TEXT) AS payload, attempts, max_attempts, refunds, claims, locked_by, round((julianday(started_at) - 2440587.5) * 86400.0, 3) AS started_at, round((julianday(slot) - 2440587.5) * 86400.0, 3) AS slot, CAST(errors AS TEXT) AS errors, round((julianday(run_at) - 2440587.5) * 86400.0, 3) AS due, NULL AS anon_1;

-- next due
WITH RECURSIVE lane(queue, type) AS
(SELECT first.queue AS queue, first.type AS type
FROM (SELECT job.queue AS queue, job.type AS type
FROM job
WHERE job.status = 'ready' ORDER BY job.queue, job.type
 LIMIT ? OFFSET ?) AS first UNION ALL SELECT lane_row.queue AS queue, lane_row.type AS type
FROM lane JOIN job AS lane_row ON lane_row.id = (SELECT following.id
FROM job AS following
WHERE following.status = 'ready' AND (following.queue, following.type) > (lane.queue, lane.type) ORDER BY following.queue, following.type
 LIMIT ? OFFSET ?))
 SELECT round((julianday(min(due.run_at)) - 2440587.5) * 86400.0, 3) - round((julianday(strftime('%Y-%m-%d %H:%M:%f000', 'now')) - 2440587.5) * 86400.0, 3) AS anon_1
FROM (SELECT (SELECT first_due.run_at
FROM job AS first_due
WHERE first_due.status = 'ready' AND first_due.queue = lane.queue AND first_due.type = lane.type ORDER BY first_due.run_at
 LIMIT ? OFFSET ?) AS run_at
FROM lane
WHERE lane.type IN (__[POSTCOMPILE_types]) AND lane.queue IN (__[POSTCOMPILE_queues])) AS due;

-- renew
WITH held AS MATERIALIZED
(SELECT job.id AS id
FROM (SELECT json_extract("each".value, ?) AS id, json_extract("each".value, ?) AS claims, json_extract("each".value, ?) AS locked_by
FROM json_each(?) AS "each") AS given JOIN job ON job.id = given.id AND job.status = 'running' AND job.claims = given.claims AND job.locked_by IS given.locked_by ORDER BY job.id)
 UPDATE job SET locked_until=strftime('%Y-%m-%d %H:%M:%f000', strftime('%Y-%m-%d %H:%M:%f000', 'now'), printf('%+.3f seconds', ?)) WHERE job.id IN (SELECT held.id
FROM held) RETURNING id, claims;

-- held
SELECT job.id, job.claims
FROM (SELECT json_extract("each".value, ?) AS id, json_extract("each".value, ?) AS claims, json_extract("each".value, ?) AS locked_by
FROM json_each(?) AS "each") AS given JOIN job ON job.id = given.id AND job.status = 'running' AND job.claims = given.claims AND job.locked_by IS given.locked_by;

-- settle
UPDATE job SET status=given.status, run_at=CASE WHEN (given.delay IS NOT NULL) THEN strftime('%Y-%m-%d %H:%M:%f000', strftime('%Y-%m-%d %H:%M:%f000', 'now'), printf('%+.3f seconds', given.delay)) ELSE job.run_at END, attempts=given.attempts, refunds=given.refunds, locked_by=CASE WHEN (given.status = 'ready') THEN NULL ELSE job.locked_by END, locked_until=NULL, last_error=coalesce(given.error, job.last_error), errors=coalesce(given.errors, job.errors), result=given.result, lease_expirations=(job.lease_expirations + given.expired), last_lease_expired_at=CASE WHEN (given.expired > ?) THEN strftime('%Y-%m-%d %H:%M:%f000', 'now') ELSE job.last_lease_expired_at END, finished_at=CASE WHEN (given.status = 'ready') THEN NULL ELSE strftime('%Y-%m-%d %H:%M:%f000', 'now') END FROM (SELECT json_extract("each".value, ?) AS id, json_extract("each".value, ?) AS claims, json_extract("each".value, ?) AS locked_by, json_extract("each".value, ?) AS status, json_extract("each".value, ?) AS delay, json_extract("each".value, ?) AS attempts, json_extract("each".value, ?) AS refunds, json_extract("each".value, ?) AS error, json_extract("each".value, ?) AS errors, json_extract("each".value, ?) AS result, json_extract("each".value, ?) AS expired
FROM json_each(?) AS "each") AS given WHERE job.id = given.id AND job.status = 'running' AND job.claims = given.claims AND job.locked_by IS given.locked_by RETURNING id, claims;

-- expired
SELECT job.id, job.type, job.queue, CAST(job.payload AS TEXT) AS payload, job.attempts, job.max_attempts, job.refunds, job.claims, job.locked_by, round((julianday(job.started_at) - 2440587.5) * 86400.0, 3) AS started_at, round((julianday(job.slot) - 2440587.5) * 86400.0, 3) AS slot, CAST(job.errors AS TEXT) AS errors
FROM job
WHERE job.status = 'running' AND (job.locked_until <= strftime('%Y-%m-%d %H:%M:%f000', 'now') OR job.locked_until IS NULL) ORDER BY job.locked_by, job.id
 LIMIT ? OFFSET ?;

-- strays
SELECT job.id, job.type, job.queue, CAST(job.payload AS TEXT) AS payload, job.attempts, job.max_attempts, job.refunds, job.claims, job.locked_by, round((julianday(job.started_at) - 2440587.5) * 86400.0, 3) AS started_at, round((julianday(job.slot) - 2440587.5) * 86400.0, 3) AS slot, CAST(job.errors AS TEXT) AS errors
FROM job
WHERE job.status = 'running' AND job.locked_by = ? ORDER BY job.locked_by, job.id
 LIMIT ? OFFSET ?;

-- endings
SELECT job.id, job.claims, job.status
FROM (SELECT json_extract("each".value, ?) AS id, json_extract("each".value, ?) AS claims, json_extract("each".value, ?) AS locked_by
FROM json_each(?) AS "each") AS given JOIN job ON job.id = given.id AND job.claims = given.claims AND (job.locked_by = given.locked_by OR job.locked_by IS NULL);

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

-- ready of type
SELECT job.id, job.type, job.payload, job.queue, job.idempotency_key, job.status, job.run_at, job.attempts, job.max_attempts, job.refunds, job.claims, job.locked_by, job.locked_until, job.last_error, job.errors, job.result, job.lease_expirations, job.last_lease_expired_at, job.schedule_id, job.slot, job.trace, job.created_at, job.started_at, job.finished_at
FROM job
WHERE job.status = 'ready' AND job.type = ? ORDER BY job.id;
