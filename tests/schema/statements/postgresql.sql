-- claim
WITH RECURSIVE lane(queue, type, run_at) AS
(SELECT first.queue AS queue, first.type AS type, first.run_at AS run_at
FROM (SELECT next_row.queue AS queue, next_row.type AS type, next_row.run_at AS run_at
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue >= '' ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1) AS first UNION ALL SELECT lane_row.queue AS queue, lane_row.type AS type, lane_row.run_at AS run_at
FROM lane JOIN job AS lane_row ON lane_row.id = coalesce((SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue = lane.queue AND next_row.type > lane.type ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1), (SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue > lane.queue ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1))),
head AS
(SELECT lane.queue AS queue, lane.type AS type, lane.run_at AS run_at
FROM lane JOIN LATERAL (SELECT candidate.id AS id, candidate.run_at AS run_at
FROM job AS candidate
WHERE candidate.status = 'ready' AND candidate.queue = lane.queue AND candidate.type = lane.type AND candidate.run_at >= lane.run_at AND candidate.run_at <= statement_timestamp() ORDER BY candidate.run_at, candidate.id
 LIMIT %(sqla_jobs_limit)s::INTEGER) AS oldest ON true
WHERE lane.type IN (__[POSTCOMPILE_sqla_jobs_types]) AND lane.queue IN (__[POSTCOMPILE_sqla_jobs_queues]) ORDER BY oldest.run_at, oldest.id
 LIMIT %(sqla_jobs_limit)s::INTEGER),
share AS
(SELECT head.queue AS queue, head.type AS type, head.run_at AS run_at, count(*) AS wanted
FROM head GROUP BY head.queue, head.type, head.run_at),
first AS MATERIALIZED
(SELECT anon_1.id AS id
FROM share JOIN LATERAL (SELECT held.id AS id, held.run_at AS run_at
FROM job AS held
WHERE held.status = 'ready' AND held.queue = share.queue AND held.type = share.type AND held.run_at >= share.run_at AND held.run_at <= statement_timestamp() ORDER BY held.run_at, held.id
 LIMIT share.wanted FOR NO KEY UPDATE SKIP LOCKED) AS anon_1 ON true
 LIMIT %(sqla_jobs_limit)s::INTEGER),
rest AS MATERIALIZED
(SELECT anon_2.id AS id
FROM lane JOIN LATERAL (SELECT other.id AS id, other.run_at AS run_at
FROM job AS other
WHERE other.status = 'ready' AND other.queue = lane.queue AND other.type = lane.type AND other.run_at >= lane.run_at AND other.run_at <= statement_timestamp() AND other.id != ALL (array((SELECT first.id
FROM first))) ORDER BY other.run_at, other.id
 LIMIT %(sqla_jobs_limit)s::INTEGER - (SELECT count(*) AS count_1
FROM first) FOR NO KEY UPDATE SKIP LOCKED) AS anon_2 ON true
WHERE lane.type IN (__[POSTCOMPILE_sqla_jobs_types]) AND lane.queue IN (__[POSTCOMPILE_sqla_jobs_queues])
 LIMIT %(sqla_jobs_limit)s::INTEGER - (SELECT count(*) AS count_1
FROM first))
 UPDATE job SET status='running', attempts=CASE WHEN (job.attempts < %(attempts_1)s::INTEGER) THEN job.attempts + %(attempts_2)s::INTEGER ELSE job.attempts END, claims=CASE WHEN (job.claims < %(claims_1)s::INTEGER) THEN job.claims + %(claims_2)s::INTEGER ELSE job.claims END, locked_by=%(sqla_jobs_locked_by)s::VARCHAR, locked_until=(statement_timestamp() + CAST(%(sqla_jobs_lease)s AS DOUBLE PRECISION) * INTERVAL '1 second'), started_at=statement_timestamp() WHERE job.id = ANY (array((SELECT first.id
FROM first UNION ALL SELECT rest.id
FROM rest))) RETURNING job.id, job.type, job.queue, CAST(job.payload AS TEXT) AS payload, job.attempts, job.max_attempts, job.refunds, job.claims, job.locked_by, CAST(EXTRACT(EPOCH FROM job.started_at) AS DOUBLE PRECISION) AS started_at, CAST(EXTRACT(EPOCH FROM job.slot) AS DOUBLE PRECISION) AS slot, CAST(job.errors AS TEXT) AS errors, coalesce(CAST(EXTRACT(EPOCH FROM job.run_at) AS DOUBLE PRECISION), -1e300) AS due, concat(CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END, set_config('idle_in_transaction_session_timeout', '5s', true)) AS anon_3;

-- claim from every queue
WITH RECURSIVE lane(queue, type, run_at) AS
(SELECT first.queue AS queue, first.type AS type, first.run_at AS run_at
FROM (SELECT next_row.queue AS queue, next_row.type AS type, next_row.run_at AS run_at
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue >= '' ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1) AS first UNION ALL SELECT lane_row.queue AS queue, lane_row.type AS type, lane_row.run_at AS run_at
FROM lane JOIN job AS lane_row ON lane_row.id = coalesce((SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue = lane.queue AND next_row.type > lane.type ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1), (SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue > lane.queue ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1))),
head AS
(SELECT lane.queue AS queue, lane.type AS type, lane.run_at AS run_at
FROM lane JOIN LATERAL (SELECT candidate.id AS id, candidate.run_at AS run_at
FROM job AS candidate
WHERE candidate.status = 'ready' AND candidate.queue = lane.queue AND candidate.type = lane.type AND candidate.run_at >= lane.run_at AND candidate.run_at <= statement_timestamp() ORDER BY candidate.run_at, candidate.id
 LIMIT %(sqla_jobs_limit)s::INTEGER) AS oldest ON true
WHERE lane.type IN (__[POSTCOMPILE_sqla_jobs_types]) ORDER BY oldest.run_at, oldest.id
 LIMIT %(sqla_jobs_limit)s::INTEGER),
share AS
(SELECT head.queue AS queue, head.type AS type, head.run_at AS run_at, count(*) AS wanted
FROM head GROUP BY head.queue, head.type, head.run_at),
first AS MATERIALIZED
(SELECT anon_1.id AS id
FROM share JOIN LATERAL (SELECT held.id AS id, held.run_at AS run_at
FROM job AS held
WHERE held.status = 'ready' AND held.queue = share.queue AND held.type = share.type AND held.run_at >= share.run_at AND held.run_at <= statement_timestamp() ORDER BY held.run_at, held.id
 LIMIT share.wanted FOR NO KEY UPDATE SKIP LOCKED) AS anon_1 ON true
 LIMIT %(sqla_jobs_limit)s::INTEGER),
rest AS MATERIALIZED
(SELECT anon_2.id AS id
FROM lane JOIN LATERAL (SELECT other.id AS id, other.run_at AS run_at
FROM job AS other
WHERE other.status = 'ready' AND other.queue = lane.queue AND other.type = lane.type AND other.run_at >= lane.run_at AND other.run_at <= statement_timestamp() AND other.id != ALL (array((SELECT first.id
FROM first))) ORDER BY other.run_at, other.id
 LIMIT %(sqla_jobs_limit)s::INTEGER - (SELECT count(*) AS count_1
FROM first) FOR NO KEY UPDATE SKIP LOCKED) AS anon_2 ON true
WHERE lane.type IN (__[POSTCOMPILE_sqla_jobs_types])
 LIMIT %(sqla_jobs_limit)s::INTEGER - (SELECT count(*) AS count_1
FROM first))
 UPDATE job SET status='running', attempts=CASE WHEN (job.attempts < %(attempts_1)s::INTEGER) THEN job.attempts + %(attempts_2)s::INTEGER ELSE job.attempts END, claims=CASE WHEN (job.claims < %(claims_1)s::INTEGER) THEN job.claims + %(claims_2)s::INTEGER ELSE job.claims END, locked_by=%(sqla_jobs_locked_by)s::VARCHAR, locked_until=(statement_timestamp() + CAST(%(sqla_jobs_lease)s AS DOUBLE PRECISION) * INTERVAL '1 second'), started_at=statement_timestamp() WHERE job.id = ANY (array((SELECT first.id
FROM first UNION ALL SELECT rest.id
FROM rest))) RETURNING job.id, job.type, job.queue, CAST(job.payload AS TEXT) AS payload, job.attempts, job.max_attempts, job.refunds, job.claims, job.locked_by, CAST(EXTRACT(EPOCH FROM job.started_at) AS DOUBLE PRECISION) AS started_at, CAST(EXTRACT(EPOCH FROM job.slot) AS DOUBLE PRECISION) AS slot, CAST(job.errors AS TEXT) AS errors, coalesce(CAST(EXTRACT(EPOCH FROM job.run_at) AS DOUBLE PRECISION), -1e300) AS due, concat(CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END, set_config('idle_in_transaction_session_timeout', '5s', true)) AS anon_3;

-- due rows but those that are refused
WITH RECURSIVE lane(queue, type, run_at) AS
(SELECT first.queue AS queue, first.type AS type, first.run_at AS run_at
FROM (SELECT next_row.queue AS queue, next_row.type AS type, next_row.run_at AS run_at
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue >= '' ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1) AS first UNION ALL SELECT lane_row.queue AS queue, lane_row.type AS type, lane_row.run_at AS run_at
FROM lane JOIN job AS lane_row ON lane_row.id = coalesce((SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue = lane.queue AND next_row.type > lane.type ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1), (SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue > lane.queue ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1))),
given AS MATERIALIZED
(SELECT each.id AS id
FROM json_to_recordset(CAST(%(sqla_jobs_rows)s::VARCHAR AS JSON)) AS each(id BIGINT)),
head AS
(SELECT lane.queue AS queue, lane.type AS type, lane.run_at AS run_at
FROM lane JOIN LATERAL (SELECT candidate.id AS id, candidate.run_at AS run_at
FROM job AS candidate
WHERE candidate.status = 'ready' AND candidate.queue = lane.queue AND candidate.type = lane.type AND candidate.run_at >= lane.run_at AND (candidate.id NOT IN (SELECT given.id
FROM given)) AND candidate.run_at <= statement_timestamp() ORDER BY candidate.run_at, candidate.id
 LIMIT %(sqla_jobs_limit)s::INTEGER) AS oldest ON true
WHERE lane.type IN (__[POSTCOMPILE_sqla_jobs_types]) AND lane.queue IN (__[POSTCOMPILE_sqla_jobs_queues]) ORDER BY oldest.run_at, oldest.id
 LIMIT %(sqla_jobs_limit)s::INTEGER),
share AS
(SELECT head.queue AS queue, head.type AS type, head.run_at AS run_at, count(*) AS wanted
FROM head GROUP BY head.queue, head.type, head.run_at),
first AS MATERIALIZED
(SELECT anon_1.id AS id
FROM share JOIN LATERAL (SELECT held.id AS id, held.run_at AS run_at
FROM job AS held
WHERE held.status = 'ready' AND held.queue = share.queue AND held.type = share.type AND held.run_at >= share.run_at AND (held.id NOT IN (SELECT given.id
FROM given)) AND held.run_at <= statement_timestamp() ORDER BY held.run_at, held.id
 LIMIT share.wanted FOR NO KEY UPDATE SKIP LOCKED) AS anon_1 ON true
 LIMIT %(sqla_jobs_limit)s::INTEGER),
rest AS MATERIALIZED
(SELECT anon_2.id AS id
FROM lane JOIN LATERAL (SELECT other.id AS id, other.run_at AS run_at
FROM job AS other
WHERE other.status = 'ready' AND other.queue = lane.queue AND other.type = lane.type AND other.run_at >= lane.run_at AND (other.id NOT IN (SELECT given.id
FROM given)) AND other.run_at <= statement_timestamp() AND other.id != ALL (array((SELECT first.id
FROM first))) ORDER BY other.run_at, other.id
 LIMIT %(sqla_jobs_limit)s::INTEGER - (SELECT count(*) AS count_1
FROM first) FOR NO KEY UPDATE SKIP LOCKED) AS anon_2 ON true
WHERE lane.type IN (__[POSTCOMPILE_sqla_jobs_types]) AND lane.queue IN (__[POSTCOMPILE_sqla_jobs_queues])
 LIMIT %(sqla_jobs_limit)s::INTEGER - (SELECT count(*) AS count_1
FROM first))
 SELECT first.id
FROM first UNION ALL SELECT rest.id
FROM rest;

-- claim locked rows
WITH given AS MATERIALIZED
(SELECT each.id AS id
FROM json_to_recordset(CAST(%(sqla_jobs_rows)s::VARCHAR AS JSON)) AS each(id BIGINT))
 UPDATE job SET status='running', attempts=CASE WHEN (job.attempts < %(attempts_1)s::INTEGER) THEN job.attempts + %(attempts_2)s::INTEGER ELSE job.attempts END, claims=CASE WHEN (job.claims < %(claims_1)s::INTEGER) THEN job.claims + %(claims_2)s::INTEGER ELSE job.claims END, locked_by=%(sqla_jobs_locked_by)s::VARCHAR, locked_until=(statement_timestamp() + CAST(%(sqla_jobs_lease)s AS DOUBLE PRECISION) * INTERVAL '1 second'), started_at=statement_timestamp() WHERE job.id = ANY (array((SELECT given.id
FROM given))) RETURNING job.id, job.type, job.queue, CAST(job.payload AS TEXT) AS payload, job.attempts, job.max_attempts, job.refunds, job.claims, job.locked_by, CAST(EXTRACT(EPOCH FROM job.started_at) AS DOUBLE PRECISION) AS started_at, CAST(EXTRACT(EPOCH FROM job.slot) AS DOUBLE PRECISION) AS slot, CAST(job.errors AS TEXT) AS errors, coalesce(CAST(EXTRACT(EPOCH FROM job.run_at) AS DOUBLE PRECISION), -1e300) AS due, concat(CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END, set_config('idle_in_transaction_session_timeout', '5s', true)) AS anon_1;

-- next due
WITH RECURSIVE lane(queue, type, run_at) AS
(SELECT first.queue AS queue, first.type AS type, first.run_at AS run_at
FROM (SELECT next_row.queue AS queue, next_row.type AS type, next_row.run_at AS run_at
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue >= '' ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1) AS first UNION ALL SELECT lane_row.queue AS queue, lane_row.type AS type, lane_row.run_at AS run_at
FROM lane JOIN job AS lane_row ON lane_row.id = coalesce((SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue = lane.queue AND next_row.type > lane.type ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1), (SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue > lane.queue ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1)))
 SELECT CAST(EXTRACT(EPOCH FROM min(due.run_at)) AS DOUBLE PRECISION) - CAST(EXTRACT(EPOCH FROM statement_timestamp()) AS DOUBLE PRECISION) AS anon_1
FROM (SELECT lane.run_at AS run_at
FROM lane
WHERE lane.type IN (__[POSTCOMPILE_sqla_jobs_types]) AND lane.queue IN (__[POSTCOMPILE_sqla_jobs_queues])) AS due;

-- next due but those that are refused
WITH RECURSIVE given AS MATERIALIZED
(SELECT each.id AS id
FROM json_to_recordset(CAST(%(sqla_jobs_rows)s::VARCHAR AS JSON)) AS each(id BIGINT)),
lane(queue, type, run_at) AS
(SELECT first.queue AS queue, first.type AS type, first.run_at AS run_at
FROM (SELECT next_row.queue AS queue, next_row.type AS type, next_row.run_at AS run_at
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue >= '' ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1) AS first UNION ALL SELECT lane_row.queue AS queue, lane_row.type AS type, lane_row.run_at AS run_at
FROM lane JOIN job AS lane_row ON lane_row.id = coalesce((SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue = lane.queue AND next_row.type > lane.type ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1), (SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue > lane.queue ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1)))
 SELECT CAST(EXTRACT(EPOCH FROM min(due.run_at)) AS DOUBLE PRECISION) - CAST(EXTRACT(EPOCH FROM statement_timestamp()) AS DOUBLE PRECISION) AS anon_1
FROM (SELECT (SELECT first_row.run_at
FROM job AS first_row
WHERE first_row.status = 'ready' AND first_row.queue = lane.queue AND first_row.type = lane.type AND first_row.run_at >= lane.run_at AND (first_row.id NOT IN (SELECT given.id
FROM given)) ORDER BY first_row.run_at, first_row.id
 LIMIT 1) AS run_at
FROM lane
WHERE lane.type IN (__[POSTCOMPILE_sqla_jobs_types]) AND lane.queue IN (__[POSTCOMPILE_sqla_jobs_queues])) AS due;

-- renew
WITH given AS MATERIALIZED
(SELECT each.id AS id, each.claims AS claims, each.locked_by AS locked_by
FROM json_to_recordset(CAST(%(sqla_jobs_rows)s::VARCHAR AS JSON)) AS each(id BIGINT, claims INTEGER, locked_by VARCHAR)),
held AS MATERIALIZED
(SELECT job.id AS id
FROM given JOIN job ON job.id = ANY (array((SELECT given.id
FROM given))) AND job.id = given.id AND (job.status || '') = 'running' AND job.claims = given.claims AND job.locked_by IS NOT DISTINCT FROM given.locked_by ORDER BY job.id FOR NO KEY UPDATE OF job SKIP LOCKED)
 UPDATE job SET locked_until=(statement_timestamp() + CAST(%(sqla_jobs_lease)s AS DOUBLE PRECISION) * INTERVAL '1 second') WHERE job.id = ANY (array((SELECT held.id
FROM held))) RETURNING job.id, job.claims;

-- held
WITH given AS MATERIALIZED
(SELECT each.id AS id, each.claims AS claims, each.locked_by AS locked_by
FROM json_to_recordset(CAST(%(sqla_jobs_rows)s::VARCHAR AS JSON)) AS each(id BIGINT, claims INTEGER, locked_by VARCHAR))
 SELECT job.id, job.claims
FROM given JOIN job ON job.id = ANY (array((SELECT given.id
FROM given))) AND job.id = given.id AND (job.status || '') = 'running' AND job.claims = given.claims AND job.locked_by IS NOT DISTINCT FROM given.locked_by;

-- settle
WITH given AS MATERIALIZED
(SELECT each.id AS id, each.claims AS claims, each.locked_by AS locked_by, each.status AS status, each.delay AS delay, each.attempts AS attempts, each.refunds AS refunds, each.error AS error, each.errors AS errors, each.result AS result, each.expired AS expired
FROM json_to_recordset(CAST(%(sqla_jobs_rows)s::VARCHAR AS JSON)) AS each(id BIGINT, claims INTEGER, locked_by VARCHAR, status VARCHAR, delay DOUBLE PRECISION, attempts INTEGER, refunds INTEGER, error TEXT, errors TEXT, result TEXT, expired INTEGER))
 UPDATE job SET status=given.status, run_at=CASE WHEN (given.delay IS NOT NULL) THEN (statement_timestamp() + CAST(given.delay AS DOUBLE PRECISION) * INTERVAL '1 second') ELSE job.run_at END, attempts=given.attempts, refunds=given.refunds, locked_by=CASE WHEN (given.status = 'ready') THEN NULL ELSE job.locked_by END, locked_until=NULL, last_error=coalesce(given.error, job.last_error), errors=coalesce(CAST(given.errors AS JSONB), job.errors), result=CAST(given.result AS JSONB), lease_expirations=CASE WHEN (job.lease_expirations < %(lease_expirations_1)s::INTEGER) THEN job.lease_expirations + given.expired ELSE job.lease_expirations END, last_lease_expired_at=CASE WHEN (given.expired > %(expired_1)s::INTEGER) THEN statement_timestamp() ELSE job.last_lease_expired_at END, finished_at=CASE WHEN (given.status = 'ready') THEN NULL ELSE statement_timestamp() END FROM given WHERE job.id = ANY (array((SELECT given.id
FROM given))) AND job.id = given.id AND (job.status || '') = 'running' AND job.claims = given.claims AND job.locked_by IS NOT DISTINCT FROM given.locked_by RETURNING job.id, job.claims;

-- insert payloads
INSERT INTO job (payload, type, queue, max_attempts, created_at, run_at) SELECT each.value, %(sqla_jobs_of_type)s::VARCHAR AS anon_1, %(sqla_jobs_of_queue)s::VARCHAR AS anon_2, %(sqla_jobs_of_max_attempts)s::INTEGER AS anon_3, statement_timestamp() AS anon_4, statement_timestamp() AS anon__1
FROM jsonb_array_elements(CAST(%(sqla_jobs_rows)s::VARCHAR AS JSONB)) WITH ORDINALITY AS each(value, n) ORDER BY each.n RETURNING job.id;

-- complete
WITH given AS MATERIALIZED
(SELECT each.id AS id, each.claims AS claims, each.locked_by AS locked_by
FROM json_to_recordset(CAST(%(sqla_jobs_rows)s::VARCHAR AS JSON)) AS each(id BIGINT, claims INTEGER, locked_by VARCHAR))
 UPDATE job SET status='done', locked_until=NULL, result=NULL, finished_at=statement_timestamp() FROM given WHERE job.id = ANY (array((SELECT given.id
FROM given))) AND job.id = given.id AND (job.status || '') = 'running' AND job.claims = given.claims AND job.locked_by IS NOT DISTINCT FROM given.locked_by RETURNING job.id, job.claims;

-- complete one
UPDATE job SET status='done', locked_until=NULL, result=NULL, finished_at=statement_timestamp() WHERE job.id = %(sqla_jobs_held_id)s::BIGINT AND (job.status || '') = 'running' AND job.claims = %(sqla_jobs_held_claims)s::INTEGER AND job.locked_by IS NOT DISTINCT FROM %(sqla_jobs_held_by)s::VARCHAR;

-- expired
SELECT job.id, job.type, job.queue, CAST(job.payload AS TEXT) AS payload, job.attempts, job.max_attempts, job.refunds, job.claims, job.locked_by, CAST(EXTRACT(EPOCH FROM job.started_at) AS DOUBLE PRECISION) AS started_at, CAST(EXTRACT(EPOCH FROM job.slot) AS DOUBLE PRECISION) AS slot, CAST(job.errors AS TEXT) AS errors
FROM job
WHERE job.status = 'running' AND (job.locked_until <= statement_timestamp() OR job.locked_until IS NULL) ORDER BY job.locked_by, job.id
 LIMIT %(sqla_jobs_limit)s::INTEGER FOR NO KEY UPDATE SKIP LOCKED;

-- expired but those that are refused
WITH given AS MATERIALIZED
(SELECT each.id AS id
FROM json_to_recordset(CAST(%(sqla_jobs_rows)s::VARCHAR AS JSON)) AS each(id BIGINT))
 SELECT job.id, job.type, job.queue, CAST(job.payload AS TEXT) AS payload, job.attempts, job.max_attempts, job.refunds, job.claims, job.locked_by, CAST(EXTRACT(EPOCH FROM job.started_at) AS DOUBLE PRECISION) AS started_at, CAST(EXTRACT(EPOCH FROM job.slot) AS DOUBLE PRECISION) AS slot, CAST(job.errors AS TEXT) AS errors
FROM job
WHERE job.status = 'running' AND (job.locked_until <= statement_timestamp() OR job.locked_until IS NULL) AND (job.id NOT IN (SELECT given.id
FROM given)) ORDER BY job.locked_by, job.id
 LIMIT %(sqla_jobs_limit)s::INTEGER FOR NO KEY UPDATE SKIP LOCKED;

-- strays
WITH given AS MATERIALIZED
(SELECT each.id AS id, each.claims AS claims
FROM json_to_recordset(CAST(%(sqla_jobs_rows)s::VARCHAR AS JSON)) AS each(id BIGINT, claims INTEGER))
 SELECT job.id, job.type, job.queue, CAST(job.payload AS TEXT) AS payload, job.attempts, job.max_attempts, job.refunds, job.claims, job.locked_by, CAST(EXTRACT(EPOCH FROM job.started_at) AS DOUBLE PRECISION) AS started_at, CAST(EXTRACT(EPOCH FROM job.slot) AS DOUBLE PRECISION) AS slot, CAST(job.errors AS TEXT) AS errors
FROM job
WHERE job.status = 'running' AND job.locked_by = %(sqla_jobs_locked_by)s::VARCHAR AND NOT (EXISTS (SELECT given.id
FROM given
WHERE job.id = given.id AND job.claims = given.claims)) ORDER BY job.locked_by, job.id
 LIMIT %(param_1)s::INTEGER;

-- endings
WITH given AS MATERIALIZED
(SELECT each.id AS id, each.claims AS claims, each.locked_by AS locked_by
FROM json_to_recordset(CAST(%(sqla_jobs_rows)s::VARCHAR AS JSON)) AS each(id BIGINT, claims INTEGER, locked_by VARCHAR))
 SELECT job.id, job.claims, job.status
FROM given JOIN job ON job.id = given.id AND job.claims = given.claims AND (job.locked_by = given.locked_by OR job.locked_by IS NULL);

-- current time
SELECT statement_timestamp() AS anon_1;

-- insert job
INSERT INTO job (type, payload, queue, run_at, max_attempts, created_at) VALUES (%(type)s::VARCHAR, %(payload)s::JSONB, %(queue)s::VARCHAR, statement_timestamp(), %(max_attempts)s::INTEGER, statement_timestamp()) RETURNING job.id, job.type, job.payload, job.queue, job.idempotency_key, job.status, job.run_at, job.attempts, job.max_attempts, job.refunds, job.claims, job.locked_by, job.locked_until, job.last_error, job.errors, job.result, job.lease_expirations, job.last_lease_expired_at, job.schedule_id, job.slot, job.trace, job.created_at, job.started_at, job.finished_at, pg_notify(%(pg_notify_2)s::VARCHAR, job.queue) AS pg_notify_1;

-- insert job with a delay
INSERT INTO job (type, payload, queue, run_at, max_attempts, created_at) VALUES (%(type)s::VARCHAR, %(payload)s::JSONB, %(queue)s::VARCHAR, (statement_timestamp() + CAST(%(sqla_jobs_delay)s AS DOUBLE PRECISION) * INTERVAL '1 second'), %(max_attempts)s::INTEGER, statement_timestamp()) RETURNING job.id, job.type, job.payload, job.queue, job.idempotency_key, job.status, job.run_at, job.attempts, job.max_attempts, job.refunds, job.claims, job.locked_by, job.locked_until, job.last_error, job.errors, job.result, job.lease_expirations, job.last_lease_expired_at, job.schedule_id, job.slot, job.trace, job.created_at, job.started_at, job.finished_at;

-- insert job at a time
INSERT INTO job (type, payload, queue, run_at, max_attempts, created_at) VALUES (%(type)s::VARCHAR, %(payload)s::JSONB, %(queue)s::VARCHAR, %(run_at)s::TIMESTAMP WITH TIME ZONE, %(max_attempts)s::INTEGER, statement_timestamp()) RETURNING job.id, job.type, job.payload, job.queue, job.idempotency_key, job.status, job.run_at, job.attempts, job.max_attempts, job.refunds, job.claims, job.locked_by, job.locked_until, job.last_error, job.errors, job.result, job.lease_expirations, job.last_lease_expired_at, job.schedule_id, job.slot, job.trace, job.created_at, job.started_at, job.finished_at;

-- insert job with a key
INSERT INTO job (type, payload, queue, idempotency_key, run_at, max_attempts, created_at) VALUES (%(type)s::VARCHAR, %(payload)s::JSONB, %(queue)s::VARCHAR, %(idempotency_key)s::VARCHAR, statement_timestamp(), %(max_attempts)s::INTEGER, statement_timestamp()) ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING RETURNING job.id, job.type, job.payload, job.queue, job.idempotency_key, job.status, job.run_at, job.attempts, job.max_attempts, job.refunds, job.claims, job.locked_by, job.locked_until, job.last_error, job.errors, job.result, job.lease_expirations, job.last_lease_expired_at, job.schedule_id, job.slot, job.trace, job.created_at, job.started_at, job.finished_at;

-- insert jobs
INSERT INTO job (type, run_at, created_at) VALUES (%(type)s::VARCHAR, statement_timestamp(), statement_timestamp()) RETURNING job.id;

-- insert jobs with keys
INSERT INTO job (type, run_at, created_at) VALUES (%(type)s::VARCHAR, statement_timestamp(), statement_timestamp()) ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING RETURNING job.id, job.idempotency_key;

-- jobs by key
SELECT job.idempotency_key, job.id
FROM job
WHERE job.idempotency_key IN (__[POSTCOMPILE_idempotency_key_1]);

-- job by key
SELECT job.id, job.type, job.payload, job.queue, job.idempotency_key, job.status, job.run_at, job.attempts, job.max_attempts, job.refunds, job.claims, job.locked_by, job.locked_until, job.last_error, job.errors, job.result, job.lease_expirations, job.last_lease_expired_at, job.schedule_id, job.slot, job.trace, job.created_at, job.started_at, job.finished_at
FROM job
WHERE job.idempotency_key = %(idempotency_key_1)s::VARCHAR;

-- job by key, whatever the app hides
SELECT job.id, job.type, job.payload, job.queue, job.idempotency_key, job.status, job.run_at, job.attempts, job.max_attempts, job.refunds, job.claims, job.locked_by, job.locked_until, job.last_error, job.errors, job.result, job.lease_expirations, job.last_lease_expired_at, job.schedule_id, job.slot, job.trace, job.created_at, job.started_at, job.finished_at
FROM job
WHERE job.idempotency_key = %(idempotency_key_1)s::VARCHAR;

-- ready of type
SELECT job.id, job.type, job.payload, job.queue, job.idempotency_key, job.status, job.run_at, job.attempts, job.max_attempts, job.refunds, job.claims, job.locked_by, job.locked_until, job.last_error, job.errors, job.result, job.lease_expirations, job.last_lease_expired_at, job.schedule_id, job.slot, job.trace, job.created_at, job.started_at, job.finished_at
FROM job
WHERE job.status = 'ready' AND job.type = %(type_1)s::VARCHAR ORDER BY job.id;

-- notify
WITH given AS MATERIALIZED
(SELECT each.queue AS queue
FROM json_to_recordset(CAST(%(sqla_jobs_rows)s::VARCHAR AS JSON)) AS each(queue VARCHAR))
 SELECT pg_notify(%(pg_notify_2)s::VARCHAR, given.queue) AS pg_notify_1
FROM given;

-- listen
LISTEN "sqla_jobs:job";

-- look
SELECT next.wait, CAST(EXTRACT(EPOCH FROM statement_timestamp()) AS DOUBLE PRECISION) AS now, schedule.id, schedule.catch_up_limit, CAST(schedule.enabled AS TEXT) AS enabled, CAST(schedule.name AS TEXT) AS name, CAST(schedule.job_type AS TEXT) AS job_type, CAST(schedule.queue AS TEXT) AS queue, CAST(schedule.cron AS TEXT) AS cron, CAST(schedule.timezone AS TEXT) AS timezone, CAST(schedule.catch_up AS TEXT) AS catch_up, CAST(schedule.overlap AS TEXT) AS overlap, CAST(schedule.last_error AS TEXT) AS last_error, CAST(schedule.payload AS TEXT) AS payload, schedule."offset" AS "offset", CAST(EXTRACT(EPOCH FROM schedule.next_run_at) AS DOUBLE PRECISION) AS next_run_at, CAST(EXTRACT(EPOCH FROM schedule.last_slot) AS DOUBLE PRECISION) AS last_slot, CAST(CAST(EXTRACT(EPOCH FROM schedule.next_run_at) AS DOUBLE PRECISION) AS TEXT) AS seen_next_run_at, CAST(CAST(EXTRACT(EPOCH FROM schedule.last_slot) AS DOUBLE PRECISION) AS TEXT) AS seen_last_slot, schedule.planned_cron IS NULL OR schedule.cron != schedule.planned_cron OR schedule.planned_timezone IS NULL OR schedule.timezone != schedule.planned_timezone OR schedule.planned_enabled IS NULL OR schedule.enabled != schedule.planned_enabled OR schedule.enabled = (schedule.next_run_at IS NULL) AS is_edited, schedule.retired_at IS NOT NULL AS is_retired, CASE WHEN (schedule.overlap = %(overlap_1)s::VARCHAR) THEN EXISTS (SELECT job.id
FROM job
WHERE job.schedule_id IS NOT NULL AND job.status IN ('ready', 'running') AND job.schedule_id = schedule.id) ELSE false END AS has_unfinished
FROM (SELECT CAST(EXTRACT(EPOCH FROM (SELECT min(schedule.next_run_at) AS min_1
FROM schedule
WHERE schedule.retired_at IS NULL AND schedule.next_run_at > statement_timestamp())) AS DOUBLE PRECISION) - CAST(EXTRACT(EPOCH FROM statement_timestamp()) AS DOUBLE PRECISION) AS wait) AS next LEFT OUTER JOIN schedule ON schedule.id = ANY (array((SELECT due.id
FROM (SELECT schedule.id AS id
FROM schedule
WHERE schedule.retired_at IS NULL AND schedule.next_run_at <= statement_timestamp() AND (schedule.job_type IN (__[POSTCOMPILE_sqla_jobs_types]) OR schedule.last_error IS NULL AND (schedule.declared_by IS NULL OR schedule.declared_by = %(sqla_jobs_registry)s::VARCHAR) AND schedule.next_run_at <= (statement_timestamp() + CAST(%(param_1)s AS DOUBLE PRECISION) * INTERVAL '1 second')) ORDER BY schedule.next_run_at, schedule.id
 LIMIT %(sqla_jobs_limit)s::INTEGER OFFSET %(sqla_jobs_offset)s::INTEGER) AS due UNION SELECT edited.id
FROM (SELECT schedule.id AS id
FROM schedule
WHERE schedule.retired_at IS NULL AND (schedule.planned_cron IS NULL OR schedule.cron != schedule.planned_cron OR schedule.planned_timezone IS NULL OR schedule.timezone != schedule.planned_timezone OR schedule.planned_enabled IS NULL OR schedule.enabled != schedule.planned_enabled OR schedule.enabled = (schedule.next_run_at IS NULL)) AND (schedule.job_type IN (__[POSTCOMPILE_sqla_jobs_types]) OR schedule.last_error IS NULL AND (schedule.declared_by IS NULL OR schedule.declared_by = %(sqla_jobs_registry)s::VARCHAR)) ORDER BY schedule.id
 LIMIT %(sqla_jobs_limit)s::INTEGER OFFSET %(sqla_jobs_offset)s::INTEGER) AS edited UNION SELECT just_retired.id
FROM (SELECT schedule.id AS id
FROM schedule
WHERE schedule.retired_at > (statement_timestamp() + CAST(%(param_2)s AS DOUBLE PRECISION) * INTERVAL '1 second') AND schedule.declared_by = %(sqla_jobs_registry)s::VARCHAR ORDER BY schedule.retired_at, schedule.id
 LIMIT %(sqla_jobs_limit)s::INTEGER) AS just_retired)));

-- move
WITH given AS MATERIALIZED
(SELECT each.id AS id, each.cron AS cron, each.timezone AS timezone, each.enabled AS enabled, each.seen_next_run_at AS seen_next_run_at, each.seen_last_slot AS seen_last_slot, each.is_planned AS is_planned, each.next_run_at AS next_run_at, each.last_slot AS last_slot, each.missed AS missed, each."overlaps" AS "overlaps", each.error AS error
FROM json_to_recordset(CAST(%(sqla_jobs_rows)s::VARCHAR AS JSON)) AS each(id BIGINT, cron VARCHAR, timezone VARCHAR, enabled TEXT, seen_next_run_at TEXT, seen_last_slot TEXT, is_planned BOOLEAN, next_run_at DOUBLE PRECISION, last_slot DOUBLE PRECISION, missed BIGINT, "overlaps" BIGINT, error TEXT)),
unchanged AS MATERIALIZED
(SELECT schedule.id AS id
FROM given JOIN schedule ON schedule.id = given.id AND CAST(schedule.cron AS TEXT) = given.cron AND CAST(schedule.timezone AS TEXT) = given.timezone AND CAST(schedule.enabled AS TEXT) = given.enabled AND schedule.retired_at IS NULL AND CAST(CAST(EXTRACT(EPOCH FROM schedule.next_run_at) AS DOUBLE PRECISION) AS TEXT) IS NOT DISTINCT FROM given.seen_next_run_at AND CAST(CAST(EXTRACT(EPOCH FROM schedule.last_slot) AS DOUBLE PRECISION) AS TEXT) IS NOT DISTINCT FROM given.seen_last_slot
WHERE schedule.id = ANY (array((SELECT given.id
FROM given))) ORDER BY schedule.id FOR NO KEY UPDATE OF schedule SKIP LOCKED)
 UPDATE schedule SET planned_cron=CASE WHEN given.is_planned THEN schedule.cron ELSE schedule.planned_cron END, planned_timezone=CASE WHEN given.is_planned THEN schedule.timezone ELSE schedule.planned_timezone END, planned_enabled=CASE WHEN given.is_planned THEN schedule.enabled ELSE schedule.planned_enabled END, next_run_at=CASE WHEN given.is_planned THEN to_timestamp(given.next_run_at) ELSE schedule.next_run_at END, last_slot=to_timestamp(given.last_slot), slots_missed=CASE WHEN (schedule.slots_missed < %(slots_missed_1)s::BIGINT) THEN schedule.slots_missed + given.missed ELSE schedule.slots_missed END, overlaps_skipped=(schedule.overlaps_skipped + given."overlaps"), last_error=given.error FROM given WHERE schedule.id = given.id AND schedule.id = ANY (array((SELECT unchanged.id
FROM unchanged))) RETURNING schedule.id;

-- declared
WITH given AS MATERIALIZED
(SELECT each.name AS name
FROM json_to_recordset(CAST(%(sqla_jobs_rows)s::VARCHAR AS JSON)) AS each(name VARCHAR))
 SELECT schedule.id, schedule.declared_by, schedule.name AS name, schedule.job_type AS job_type, CAST(schedule.payload AS TEXT) AS payload, schedule.queue AS queue, schedule.cron AS cron, schedule.timezone AS timezone, schedule."offset" AS "offset", schedule.catch_up AS catch_up, schedule.catch_up_limit AS catch_up_limit, schedule.overlap AS overlap
FROM schedule
WHERE schedule.name IN (SELECT given.name
FROM given);

-- insert schedules
INSERT INTO schedule (created_at) VALUES (statement_timestamp()) ON CONFLICT (name) DO NOTHING RETURNING schedule.id;

-- redeclare
UPDATE schedule SET name=%(sqla_jobs_new_name)s::VARCHAR, job_type=%(sqla_jobs_new_job_type)s::VARCHAR, payload=%(sqla_jobs_new_payload)s::JSONB, queue=%(sqla_jobs_new_queue)s::VARCHAR, cron=%(sqla_jobs_new_cron)s::VARCHAR, timezone=%(sqla_jobs_new_timezone)s::VARCHAR, "offset"=%(sqla_jobs_new_offset)s, catch_up=%(sqla_jobs_new_catch_up)s::VARCHAR, catch_up_limit=%(sqla_jobs_new_catch_up_limit)s::INTEGER, overlap=%(sqla_jobs_new_overlap)s::VARCHAR WHERE schedule.id = %(sqla_jobs_of_id)s::BIGINT AND schedule.declared_by = %(sqla_jobs_registry)s::VARCHAR;

-- retire
WITH given AS MATERIALIZED
(SELECT each.name AS name
FROM json_to_recordset(CAST(%(sqla_jobs_rows)s::VARCHAR AS JSON)) AS each(name VARCHAR))
 UPDATE schedule SET retired_at=statement_timestamp() WHERE schedule.declared_by = %(sqla_jobs_registry)s::VARCHAR AND schedule.retired_at IS NULL AND (schedule.name NOT IN (SELECT given.name
FROM given)) RETURNING schedule.name;

-- revive
WITH given AS MATERIALIZED
(SELECT each.name AS name
FROM json_to_recordset(CAST(%(sqla_jobs_rows)s::VARCHAR AS JSON)) AS each(name VARCHAR))
 UPDATE schedule SET retired_at=NULL, planned_cron=CASE WHEN (schedule.retired_at <= (statement_timestamp() + CAST(%(param_1)s AS DOUBLE PRECISION) * INTERVAL '1 second')) THEN NULL ELSE schedule.planned_cron END WHERE schedule.declared_by = %(sqla_jobs_registry)s::VARCHAR AND schedule.retired_at IS NOT NULL AND schedule.name IN (SELECT given.name
FROM given) RETURNING schedule.name;

-- schedule by name
SELECT schedule.id, schedule."offset" AS "offset", CAST(schedule.name AS TEXT) AS name, CAST(schedule.job_type AS TEXT) AS job_type, CAST(schedule.queue AS TEXT) AS queue, CAST(schedule.cron AS TEXT) AS cron, CAST(schedule.timezone AS TEXT) AS timezone, CAST(schedule.payload AS TEXT) AS payload
FROM schedule
WHERE schedule.name = %(name_1)s::VARCHAR;

-- resume
UPDATE schedule SET enabled=%(enabled)s, planned_cron=CASE WHEN (schedule.enabled IS false) THEN NULL ELSE schedule.planned_cron END WHERE schedule.name = %(name_1)s::VARCHAR RETURNING schedule.id;

-- all names
SELECT schedule.name
FROM schedule ORDER BY schedule.name;

-- listed schedules
SELECT schedule.id, CAST(schedule.enabled AS TEXT) AS enabled, schedule.catch_up_limit, schedule.slots_missed, schedule.overlaps_skipped, CAST(schedule.name AS TEXT) AS name, CAST(schedule.job_type AS TEXT) AS job_type, CAST(schedule.queue AS TEXT) AS queue, CAST(schedule.cron AS TEXT) AS cron, CAST(schedule.timezone AS TEXT) AS timezone, CAST(schedule.catch_up AS TEXT) AS catch_up, CAST(schedule.overlap AS TEXT) AS overlap, CAST(schedule.declared_by AS TEXT) AS declared_by, CAST(schedule.last_error AS TEXT) AS last_error, CAST(schedule.payload AS TEXT) AS payload, CAST(EXTRACT(EPOCH FROM schedule.next_run_at) AS DOUBLE PRECISION) AS next_run_at, CAST(EXTRACT(EPOCH FROM schedule.last_slot) AS DOUBLE PRECISION) AS last_slot, CAST(EXTRACT(EPOCH FROM schedule.retired_at) AS DOUBLE PRECISION) AS retired_at, CAST(EXTRACT(EPOCH FROM schedule.created_at) AS DOUBLE PRECISION) AS created_at, schedule."offset" AS "offset"
FROM schedule
WHERE %(sqla_jobs_after)s::VARCHAR IS NULL OR schedule.name > %(sqla_jobs_after)s::VARCHAR ORDER BY schedule.name
 LIMIT %(sqla_jobs_limit)s::INTEGER;

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
 LIMIT %(sqla_jobs_limit)s::INTEGER) AS anon_1 UNION ALL SELECT anon_2.id AS id, anon_2.at AS at
FROM (SELECT job.id AS id, job.finished_at AS at
FROM job
WHERE job.status = 'dead' AND job.status IN ('done', 'failed', 'dead') AND job.finished_at IS NOT NULL ORDER BY job.finished_at DESC, job.id DESC
 LIMIT %(sqla_jobs_limit)s::INTEGER) AS anon_2) AS w ORDER BY w.at DESC, w.id DESC
 LIMIT %(sqla_jobs_limit)s::INTEGER)
 SELECT job.id, job.attempts, job.max_attempts, CAST(job.type AS TEXT) AS type, CAST(job.queue AS TEXT) AS queue, CAST(job.status AS TEXT) AS status, CAST(job.locked_by AS TEXT) AS locked_by, CAST(EXTRACT(EPOCH FROM job.run_at) AS DOUBLE PRECISION) AS run_at, CAST(EXTRACT(EPOCH FROM job.created_at) AS DOUBLE PRECISION) AS created_at, CAST(EXTRACT(EPOCH FROM job.started_at) AS DOUBLE PRECISION) AS started_at, CAST(EXTRACT(EPOCH FROM job.finished_at) AS DOUBLE PRECISION) AS finished_at, CAST(EXTRACT(EPOCH FROM job.locked_until) AS DOUBLE PRECISION) AS locked_until, (to_json(first_rows.at) #>> '{}') AS at, true AS matches, CASE WHEN true THEN CAST(job.last_error AS TEXT) END AS last_error
FROM first_rows JOIN job ON job.id = first_rows.id ORDER BY first_rows.at DESC, first_rows.id DESC;

-- next window of dead letters
WITH first_rows AS
(SELECT w.id AS id, w.at AS at
FROM (SELECT anon_1.id AS id, anon_1.at AS at
FROM (SELECT job.id AS id, job.finished_at AS at
FROM job
WHERE job.status = 'failed' AND job.status IN ('done', 'failed', 'dead') AND job.finished_at IS NOT NULL AND job.finished_at <= (statement_timestamp() + CAST(%(param_1)s AS DOUBLE PRECISION) * INTERVAL '1 second') AND (job.finished_at, job.id) < (CAST(%(param_2)s::VARCHAR AS TIMESTAMP WITH TIME ZONE), %(param_3)s::BIGINT) ORDER BY job.finished_at DESC, job.id DESC
 LIMIT %(sqla_jobs_limit)s::INTEGER) AS anon_1 UNION ALL SELECT anon_2.id AS id, anon_2.at AS at
FROM (SELECT job.id AS id, job.finished_at AS at
FROM job
WHERE job.status = 'dead' AND job.status IN ('done', 'failed', 'dead') AND job.finished_at IS NOT NULL AND job.finished_at <= (statement_timestamp() + CAST(%(param_4)s AS DOUBLE PRECISION) * INTERVAL '1 second') AND (job.finished_at, job.id) < (CAST(%(param_5)s::VARCHAR AS TIMESTAMP WITH TIME ZONE), %(param_6)s::BIGINT) ORDER BY job.finished_at DESC, job.id DESC
 LIMIT %(sqla_jobs_limit)s::INTEGER) AS anon_2) AS w ORDER BY w.at DESC, w.id DESC
 LIMIT %(sqla_jobs_limit)s::INTEGER)
 SELECT job.id, job.attempts, job.max_attempts, CAST(job.type AS TEXT) AS type, CAST(job.queue AS TEXT) AS queue, CAST(job.status AS TEXT) AS status, CAST(job.locked_by AS TEXT) AS locked_by, CAST(EXTRACT(EPOCH FROM job.run_at) AS DOUBLE PRECISION) AS run_at, CAST(EXTRACT(EPOCH FROM job.created_at) AS DOUBLE PRECISION) AS created_at, CAST(EXTRACT(EPOCH FROM job.started_at) AS DOUBLE PRECISION) AS started_at, CAST(EXTRACT(EPOCH FROM job.finished_at) AS DOUBLE PRECISION) AS finished_at, CAST(EXTRACT(EPOCH FROM job.locked_until) AS DOUBLE PRECISION) AS locked_until, (to_json(first_rows.at) #>> '{}') AS at, job.type = %(type_1)s::VARCHAR AND (coalesce(job.last_error, %(coalesce_1)s::VARCHAR) ILIKE '%%' || %(coalesce_2)s::VARCHAR || '%%' ESCAPE '/') AS matches, CASE WHEN (job.type = %(type_1)s::VARCHAR AND (coalesce(job.last_error, %(coalesce_1)s::VARCHAR) ILIKE '%%' || %(coalesce_2)s::VARCHAR || '%%' ESCAPE '/')) THEN CAST(job.last_error AS TEXT) END AS last_error
FROM first_rows JOIN job ON job.id = first_rows.id ORDER BY first_rows.at DESC, first_rows.id DESC;

-- window of rows ended by hand
WITH first_rows AS
(SELECT w.id AS id, w.at AS at
FROM (SELECT job.id AS id, NULL AS at
FROM job
WHERE job.status = 'dead' AND job.status IN ('done', 'failed', 'dead') AND job.finished_at IS NULL AND job.id < %(param_1)s::BIGINT ORDER BY job.finished_at DESC, job.id DESC
 LIMIT %(sqla_jobs_limit)s::INTEGER) AS w ORDER BY w.at DESC, w.id DESC
 LIMIT %(sqla_jobs_limit)s::INTEGER)
 SELECT job.id, job.attempts, job.max_attempts, CAST(job.type AS TEXT) AS type, CAST(job.queue AS TEXT) AS queue, CAST(job.status AS TEXT) AS status, CAST(job.locked_by AS TEXT) AS locked_by, CAST(EXTRACT(EPOCH FROM job.run_at) AS DOUBLE PRECISION) AS run_at, CAST(EXTRACT(EPOCH FROM job.created_at) AS DOUBLE PRECISION) AS created_at, CAST(EXTRACT(EPOCH FROM job.started_at) AS DOUBLE PRECISION) AS started_at, CAST(EXTRACT(EPOCH FROM job.finished_at) AS DOUBLE PRECISION) AS finished_at, CAST(EXTRACT(EPOCH FROM job.locked_until) AS DOUBLE PRECISION) AS locked_until, CAST(first_rows.at AS TEXT) AS at, true AS matches, CASE WHEN true THEN CAST(job.last_error AS TEXT) END AS last_error
FROM first_rows JOIN job ON job.id = first_rows.id ORDER BY first_rows.at DESC, first_rows.id DESC;

-- window of a lane
WITH first_rows AS
(SELECT w.id AS id, w.at AS at
FROM (SELECT job.id AS id, job.run_at AS at
FROM job
WHERE job.status = 'ready' AND job.queue = %(queue_1)s::VARCHAR AND job.type = %(type_1)s::VARCHAR AND (job.run_at, job.id) > (CAST(%(param_1)s::VARCHAR AS TIMESTAMP WITH TIME ZONE), %(param_2)s::BIGINT) ORDER BY job.run_at, job.id
 LIMIT %(sqla_jobs_limit)s::INTEGER) AS w ORDER BY w.at, w.id
 LIMIT %(sqla_jobs_limit)s::INTEGER)
 SELECT job.id, job.attempts, job.max_attempts, CAST(job.type AS TEXT) AS type, CAST(job.queue AS TEXT) AS queue, CAST(job.status AS TEXT) AS status, CAST(job.locked_by AS TEXT) AS locked_by, CAST(EXTRACT(EPOCH FROM job.run_at) AS DOUBLE PRECISION) AS run_at, CAST(EXTRACT(EPOCH FROM job.created_at) AS DOUBLE PRECISION) AS created_at, CAST(EXTRACT(EPOCH FROM job.started_at) AS DOUBLE PRECISION) AS started_at, CAST(EXTRACT(EPOCH FROM job.finished_at) AS DOUBLE PRECISION) AS finished_at, CAST(EXTRACT(EPOCH FROM job.locked_until) AS DOUBLE PRECISION) AS locked_until, (to_json(first_rows.at) #>> '{}') AS at, true AS matches, CASE WHEN true THEN CAST(job.last_error AS TEXT) END AS last_error
FROM first_rows JOIN job ON job.id = first_rows.id ORDER BY first_rows.at, first_rows.id;

-- window of running jobs
WITH first_rows AS
(SELECT w.id AS id, w.at AS at
FROM (SELECT job.id AS id, job.locked_by AS at
FROM job
WHERE job.status = 'running' AND job.locked_by IS NOT NULL AND (job.locked_by, job.id) > (%(param_1)s::VARCHAR, %(param_2)s::BIGINT) ORDER BY job.locked_by, job.id
 LIMIT %(sqla_jobs_limit)s::INTEGER) AS w ORDER BY w.at, w.id
 LIMIT %(sqla_jobs_limit)s::INTEGER)
 SELECT job.id, job.attempts, job.max_attempts, CAST(job.type AS TEXT) AS type, CAST(job.queue AS TEXT) AS queue, CAST(job.status AS TEXT) AS status, CAST(job.locked_by AS TEXT) AS locked_by, CAST(EXTRACT(EPOCH FROM job.run_at) AS DOUBLE PRECISION) AS run_at, CAST(EXTRACT(EPOCH FROM job.created_at) AS DOUBLE PRECISION) AS created_at, CAST(EXTRACT(EPOCH FROM job.started_at) AS DOUBLE PRECISION) AS started_at, CAST(EXTRACT(EPOCH FROM job.finished_at) AS DOUBLE PRECISION) AS finished_at, CAST(EXTRACT(EPOCH FROM job.locked_until) AS DOUBLE PRECISION) AS locked_until, CAST(first_rows.at AS TEXT) AS at, true AS matches, CASE WHEN true THEN CAST(job.last_error AS TEXT) END AS last_error
FROM first_rows JOIN job ON job.id = first_rows.id ORDER BY first_rows.at, first_rows.id;

-- window of one key
WITH of_key AS MATERIALIZED
(SELECT job.id AS id
FROM job
WHERE job.idempotency_key = %(idempotency_key_1)s::VARCHAR),
first_rows AS
(SELECT w.id AS id, w.at AS at
FROM (SELECT of_key.id AS id, NULL AS at
FROM of_key ORDER BY of_key.id DESC
 LIMIT %(sqla_jobs_limit)s::INTEGER) AS w ORDER BY w.at DESC, w.id DESC
 LIMIT %(sqla_jobs_limit)s::INTEGER)
 SELECT job.id, job.attempts, job.max_attempts, CAST(job.type AS TEXT) AS type, CAST(job.queue AS TEXT) AS queue, CAST(job.status AS TEXT) AS status, CAST(job.locked_by AS TEXT) AS locked_by, CAST(EXTRACT(EPOCH FROM job.run_at) AS DOUBLE PRECISION) AS run_at, CAST(EXTRACT(EPOCH FROM job.created_at) AS DOUBLE PRECISION) AS created_at, CAST(EXTRACT(EPOCH FROM job.started_at) AS DOUBLE PRECISION) AS started_at, CAST(EXTRACT(EPOCH FROM job.finished_at) AS DOUBLE PRECISION) AS finished_at, CAST(EXTRACT(EPOCH FROM job.locked_until) AS DOUBLE PRECISION) AS locked_until, CAST(first_rows.at AS TEXT) AS at, job.status = 'ready' OR job.status = 'running' OR job.status = 'done' OR job.status = 'failed' OR job.status = 'dead' AS matches, CASE WHEN (job.status = 'ready' OR job.status = 'running' OR job.status = 'done' OR job.status = 'failed' OR job.status = 'dead') THEN CAST(job.last_error AS TEXT) END AS last_error
FROM first_rows JOIN job ON job.id = first_rows.id ORDER BY first_rows.at DESC, first_rows.id DESC;

-- window of archived jobs
WITH first_rows AS
(SELECT w.id AS id, w.at AS at
FROM (SELECT archived_job.id AS id, archived_job.archived_at AS at
FROM archived_job
WHERE archived_job.archived_at IS NOT NULL ORDER BY archived_job.archived_at DESC, archived_job.id DESC
 LIMIT %(sqla_jobs_limit)s::INTEGER) AS w ORDER BY w.at DESC, w.id DESC
 LIMIT %(sqla_jobs_limit)s::INTEGER)
 SELECT archived_job.id, archived_job.attempts, archived_job.max_attempts, CAST(archived_job.type AS TEXT) AS type, CAST(archived_job.queue AS TEXT) AS queue, CAST(archived_job.status AS TEXT) AS status, CAST(archived_job.locked_by AS TEXT) AS locked_by, CAST(EXTRACT(EPOCH FROM archived_job.run_at) AS DOUBLE PRECISION) AS run_at, CAST(EXTRACT(EPOCH FROM archived_job.created_at) AS DOUBLE PRECISION) AS created_at, CAST(EXTRACT(EPOCH FROM archived_job.started_at) AS DOUBLE PRECISION) AS started_at, CAST(EXTRACT(EPOCH FROM archived_job.finished_at) AS DOUBLE PRECISION) AS finished_at, CAST(EXTRACT(EPOCH FROM archived_job.locked_until) AS DOUBLE PRECISION) AS locked_until, CAST(EXTRACT(EPOCH FROM archived_job.archived_at) AS DOUBLE PRECISION) AS archived_at, (to_json(first_rows.at) #>> '{}') AS at, archived_job.status = 'dead' OR archived_job.status = 'failed' AS matches, CASE WHEN (archived_job.status = 'dead' OR archived_job.status = 'failed') THEN CAST(archived_job.last_error AS TEXT) END AS last_error
FROM first_rows JOIN archived_job ON archived_job.id = first_rows.id ORDER BY first_rows.at DESC, first_rows.id DESC;

-- next window of archived jobs
WITH first_rows AS
(SELECT w.id AS id, w.at AS at
FROM (SELECT archived_job.id AS id, archived_job.archived_at AS at
FROM archived_job
WHERE archived_job.archived_at IS NOT NULL AND (archived_job.archived_at, archived_job.id) < (CAST(%(param_3)s::VARCHAR AS TIMESTAMP WITH TIME ZONE), %(param_4)s::BIGINT) ORDER BY archived_job.archived_at DESC, archived_job.id DESC
 LIMIT %(sqla_jobs_limit)s::INTEGER) AS w ORDER BY w.at DESC, w.id DESC
 LIMIT %(sqla_jobs_limit)s::INTEGER)
 SELECT archived_job.id, archived_job.attempts, archived_job.max_attempts, CAST(archived_job.type AS TEXT) AS type, CAST(archived_job.queue AS TEXT) AS queue, CAST(archived_job.status AS TEXT) AS status, CAST(archived_job.locked_by AS TEXT) AS locked_by, CAST(EXTRACT(EPOCH FROM archived_job.run_at) AS DOUBLE PRECISION) AS run_at, CAST(EXTRACT(EPOCH FROM archived_job.created_at) AS DOUBLE PRECISION) AS created_at, CAST(EXTRACT(EPOCH FROM archived_job.started_at) AS DOUBLE PRECISION) AS started_at, CAST(EXTRACT(EPOCH FROM archived_job.finished_at) AS DOUBLE PRECISION) AS finished_at, CAST(EXTRACT(EPOCH FROM archived_job.locked_until) AS DOUBLE PRECISION) AS locked_until, CAST(EXTRACT(EPOCH FROM archived_job.archived_at) AS DOUBLE PRECISION) AS archived_at, (to_json(first_rows.at) #>> '{}') AS at, (archived_job.status = 'done' AND archived_job.finished_at >= (statement_timestamp() + CAST(%(param_1)s AS DOUBLE PRECISION) * INTERVAL '1 second') OR archived_job.status = 'dead' AND archived_job.finished_at >= (statement_timestamp() + CAST(%(param_2)s AS DOUBLE PRECISION) * INTERVAL '1 second')) AND archived_job.queue = %(queue_1)s::VARCHAR AS matches, CASE WHEN ((archived_job.status = 'done' AND archived_job.finished_at >= (statement_timestamp() + CAST(%(param_1)s AS DOUBLE PRECISION) * INTERVAL '1 second') OR archived_job.status = 'dead' AND archived_job.finished_at >= (statement_timestamp() + CAST(%(param_2)s AS DOUBLE PRECISION) * INTERVAL '1 second')) AND archived_job.queue = %(queue_1)s::VARCHAR) THEN CAST(archived_job.last_error AS TEXT) END AS last_error
FROM first_rows JOIN archived_job ON archived_job.id = first_rows.id ORDER BY first_rows.at DESC, first_rows.id DESC;

-- next window of archived jobs of one key
WITH of_key AS MATERIALIZED
(SELECT archived_job.id AS id
FROM archived_job
WHERE archived_job.idempotency_key = %(idempotency_key_1)s::VARCHAR),
first_rows AS
(SELECT w.id AS id, w.at AS at
FROM (SELECT of_key.id AS id, NULL AS at
FROM of_key
WHERE of_key.id < %(param_1)s::BIGINT ORDER BY of_key.id DESC
 LIMIT %(sqla_jobs_limit)s::INTEGER) AS w ORDER BY w.at DESC, w.id DESC
 LIMIT %(sqla_jobs_limit)s::INTEGER)
 SELECT archived_job.id, archived_job.attempts, archived_job.max_attempts, CAST(archived_job.type AS TEXT) AS type, CAST(archived_job.queue AS TEXT) AS queue, CAST(archived_job.status AS TEXT) AS status, CAST(archived_job.locked_by AS TEXT) AS locked_by, CAST(EXTRACT(EPOCH FROM archived_job.run_at) AS DOUBLE PRECISION) AS run_at, CAST(EXTRACT(EPOCH FROM archived_job.created_at) AS DOUBLE PRECISION) AS created_at, CAST(EXTRACT(EPOCH FROM archived_job.started_at) AS DOUBLE PRECISION) AS started_at, CAST(EXTRACT(EPOCH FROM archived_job.finished_at) AS DOUBLE PRECISION) AS finished_at, CAST(EXTRACT(EPOCH FROM archived_job.locked_until) AS DOUBLE PRECISION) AS locked_until, CAST(EXTRACT(EPOCH FROM archived_job.archived_at) AS DOUBLE PRECISION) AS archived_at, CAST(first_rows.at AS TEXT) AS at, archived_job.status = 'ready' OR archived_job.status = 'running' OR archived_job.status = 'done' OR archived_job.status = 'failed' OR archived_job.status = 'dead' AS matches, CASE WHEN (archived_job.status = 'ready' OR archived_job.status = 'running' OR archived_job.status = 'done' OR archived_job.status = 'failed' OR archived_job.status = 'dead') THEN CAST(archived_job.last_error AS TEXT) END AS last_error
FROM first_rows JOIN archived_job ON archived_job.id = first_rows.id ORDER BY first_rows.at DESC, first_rows.id DESC;

-- lanes
WITH RECURSIVE lane(queue, type, run_at) AS
(SELECT first.queue AS queue, first.type AS type, first.run_at AS run_at
FROM (SELECT next_row.queue AS queue, next_row.type AS type, next_row.run_at AS run_at
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue >= '' ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1) AS first UNION ALL SELECT lane_row.queue AS queue, lane_row.type AS type, lane_row.run_at AS run_at
FROM lane JOIN job AS lane_row ON lane_row.id = coalesce((SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue = lane.queue AND next_row.type > lane.type ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1), (SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue > lane.queue ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1)))
 SELECT lane.queue, lane.type
FROM lane ORDER BY lane.queue, lane.type;

-- details
SELECT job.id, job.attempts, job.max_attempts, CAST(job.type AS TEXT) AS type, CAST(job.queue AS TEXT) AS queue, CAST(job.status AS TEXT) AS status, CAST(job.locked_by AS TEXT) AS locked_by, CAST(EXTRACT(EPOCH FROM job.run_at) AS DOUBLE PRECISION) AS run_at, CAST(EXTRACT(EPOCH FROM job.created_at) AS DOUBLE PRECISION) AS created_at, CAST(EXTRACT(EPOCH FROM job.started_at) AS DOUBLE PRECISION) AS started_at, CAST(EXTRACT(EPOCH FROM job.finished_at) AS DOUBLE PRECISION) AS finished_at, CAST(EXTRACT(EPOCH FROM job.locked_until) AS DOUBLE PRECISION) AS locked_until, job.refunds, job.claims, job.lease_expirations, job.schedule_id, CAST(job.payload AS TEXT) AS payload, CAST(job.last_error AS TEXT) AS last_error, CAST(job.errors AS TEXT) AS errors, CAST(job.result AS TEXT) AS result, CAST(job.idempotency_key AS TEXT) AS idempotency_key, CAST(job.trace AS TEXT) AS trace, CAST(EXTRACT(EPOCH FROM job.last_lease_expired_at) AS DOUBLE PRECISION) AS last_lease_expired_at, CAST(EXTRACT(EPOCH FROM job.slot) AS DOUBLE PRECISION) AS slot, CAST(EXTRACT(EPOCH FROM statement_timestamp()) AS DOUBLE PRECISION) AS now, job.run_at <= statement_timestamp() AS is_due, coalesce(job.locked_until <= statement_timestamp(), true) AS is_lease_over
FROM job
WHERE job.id = %(sqla_jobs_of_id)s::BIGINT;

-- details of an archived job
SELECT archived_job.id, archived_job.attempts, archived_job.max_attempts, CAST(archived_job.type AS TEXT) AS type, CAST(archived_job.queue AS TEXT) AS queue, CAST(archived_job.status AS TEXT) AS status, CAST(archived_job.locked_by AS TEXT) AS locked_by, CAST(EXTRACT(EPOCH FROM archived_job.run_at) AS DOUBLE PRECISION) AS run_at, CAST(EXTRACT(EPOCH FROM archived_job.created_at) AS DOUBLE PRECISION) AS created_at, CAST(EXTRACT(EPOCH FROM archived_job.started_at) AS DOUBLE PRECISION) AS started_at, CAST(EXTRACT(EPOCH FROM archived_job.finished_at) AS DOUBLE PRECISION) AS finished_at, CAST(EXTRACT(EPOCH FROM archived_job.locked_until) AS DOUBLE PRECISION) AS locked_until, CAST(EXTRACT(EPOCH FROM archived_job.archived_at) AS DOUBLE PRECISION) AS archived_at, archived_job.refunds, archived_job.claims, archived_job.lease_expirations, archived_job.schedule_id, CAST(archived_job.payload AS TEXT) AS payload, CAST(archived_job.last_error AS TEXT) AS last_error, CAST(archived_job.errors AS TEXT) AS errors, CAST(archived_job.result AS TEXT) AS result, CAST(archived_job.idempotency_key AS TEXT) AS idempotency_key, CAST(archived_job.trace AS TEXT) AS trace, CAST(EXTRACT(EPOCH FROM archived_job.last_lease_expired_at) AS DOUBLE PRECISION) AS last_lease_expired_at, CAST(EXTRACT(EPOCH FROM archived_job.slot) AS DOUBLE PRECISION) AS slot, CAST(EXTRACT(EPOCH FROM statement_timestamp()) AS DOUBLE PRECISION) AS now, archived_job.run_at <= statement_timestamp() AS is_due, coalesce(archived_job.locked_until <= statement_timestamp(), true) AS is_lease_over
FROM archived_job
WHERE archived_job.id = %(sqla_jobs_of_id)s::BIGINT;

-- jobs ahead
WITH RECURSIVE lane(queue, type, run_at) AS
(SELECT first.queue AS queue, first.type AS type, first.run_at AS run_at
FROM (SELECT next_row.queue AS queue, next_row.type AS type, next_row.run_at AS run_at
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue >= '' ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1) AS first UNION ALL SELECT lane_row.queue AS queue, lane_row.type AS type, lane_row.run_at AS run_at
FROM lane JOIN job AS lane_row ON lane_row.id = coalesce((SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue = lane.queue AND next_row.type > lane.type ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1), (SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue > lane.queue ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1)))
 SELECT lane.type, (SELECT count(*) AS count_1
FROM (SELECT earlier.id AS id
FROM job AS earlier
WHERE earlier.status = 'ready' AND earlier.queue = lane.queue AND earlier.type = lane.type AND earlier.run_at <= (SELECT own.run_at
FROM job AS own
WHERE own.id = %(sqla_jobs_of_id)s::BIGINT) AND (earlier.run_at < (SELECT own.run_at
FROM job AS own
WHERE own.id = %(sqla_jobs_of_id)s::BIGINT) OR earlier.id < %(sqla_jobs_of_id)s::BIGINT)
 LIMIT %(sqla_jobs_cap)s::INTEGER) AS "some") AS ahead
FROM lane
WHERE lane.queue = %(sqla_jobs_of_queue)s::VARCHAR;

-- requeue
WITH given AS MATERIALIZED
(SELECT each.id AS id
FROM json_to_recordset(CAST(%(sqla_jobs_rows)s::VARCHAR AS JSON)) AS each(id BIGINT)),
held AS MATERIALIZED
(SELECT job.id AS id
FROM job
WHERE job.id = ANY (array((SELECT given.id
FROM given))) AND job.status IN ('dead', 'failed') ORDER BY job.id FOR NO KEY UPDATE OF job)
 UPDATE job SET status='ready', run_at=statement_timestamp(), attempts=%(attempts)s::INTEGER, max_attempts=coalesce(%(sqla_jobs_new_max_attempts)s::INTEGER, job.max_attempts), refunds=%(refunds)s::INTEGER, locked_by=NULL, locked_until=NULL, finished_at=NULL WHERE job.id = ANY (array((SELECT held.id
FROM held))) RETURNING job.id, job.queue;

-- requeue a batch
WITH given AS MATERIALIZED
(SELECT each.id AS id
FROM json_to_recordset(CAST(%(sqla_jobs_rows)s::VARCHAR AS JSON)) AS each(id BIGINT)),
held AS MATERIALIZED
(SELECT job.id AS id
FROM job
WHERE job.id = ANY (array((SELECT given.id
FROM given))) AND job.status IN ('dead') ORDER BY job.id FOR NO KEY UPDATE OF job SKIP LOCKED)
 UPDATE job SET status='ready', run_at=statement_timestamp(), attempts=%(attempts)s::INTEGER, max_attempts=coalesce(%(sqla_jobs_new_max_attempts)s::INTEGER, job.max_attempts), refunds=%(refunds)s::INTEGER, locked_by=NULL, locked_until=NULL, finished_at=NULL WHERE job.id = ANY (array((SELECT held.id
FROM held))) RETURNING job.id, job.queue;

-- cancel
WITH given AS MATERIALIZED
(SELECT each.id AS id
FROM json_to_recordset(CAST(%(sqla_jobs_rows)s::VARCHAR AS JSON)) AS each(id BIGINT)),
held AS MATERIALIZED
(SELECT job.id AS id
FROM job
WHERE job.id = ANY (array((SELECT given.id
FROM given))) AND job.status IN ('ready') ORDER BY job.id FOR NO KEY UPDATE OF job)
 UPDATE job SET status=%(status)s::VARCHAR, locked_until=NULL, last_error=%(sqla_jobs_reason)s::VARCHAR, finished_at=statement_timestamp() WHERE job.id = ANY (array((SELECT held.id
FROM held))) RETURNING job.id, job.queue;

-- remove
WITH given AS MATERIALIZED
(SELECT each.id AS id
FROM json_to_recordset(CAST(%(sqla_jobs_rows)s::VARCHAR AS JSON)) AS each(id BIGINT)),
held AS MATERIALIZED
(SELECT job.id AS id
FROM job
WHERE job.id = ANY (array((SELECT given.id
FROM given))) AND job.status IN ('dead', 'failed') ORDER BY job.id FOR UPDATE OF job)
 DELETE FROM job WHERE job.id = ANY (array((SELECT held.id
FROM held))) RETURNING job.id, job.queue;

-- statuses
WITH given AS MATERIALIZED
(SELECT each.id AS id
FROM json_to_recordset(CAST(%(sqla_jobs_rows)s::VARCHAR AS JSON)) AS each(id BIGINT))
 SELECT job.id, CAST(job.status AS TEXT) AS status
FROM job
WHERE job.id = ANY (array((SELECT given.id
FROM given)));

-- oldest transaction
SELECT CASE WHEN min(seen.began) IS NULL AND bool_or(seen.kind IS NULL) THEN NULL ELSE coalesce(CAST(EXTRACT(EPOCH FROM statement_timestamp() - min(seen.began)) AS DOUBLE PRECISION), 0) END FROM (SELECT CASE WHEN coalesce(backend_xid, backend_xmin) IS NOT NULL THEN xact_start END AS began, backend_type AS kind FROM pg_catalog.pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() UNION ALL SELECT prepared, '' FROM pg_catalog.pg_prepared_xacts WHERE database = current_database()) AS seen WHERE seen.kind IS DISTINCT FROM 'autovacuum worker';

-- lane counts
WITH RECURSIVE lane(queue, type, run_at) AS
(SELECT first.queue AS queue, first.type AS type, first.run_at AS run_at
FROM (SELECT next_row.queue AS queue, next_row.type AS type, next_row.run_at AS run_at
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue >= '' ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1) AS first UNION ALL SELECT lane_row.queue AS queue, lane_row.type AS type, lane_row.run_at AS run_at
FROM lane JOIN job AS lane_row ON lane_row.id = coalesce((SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue = lane.queue AND next_row.type > lane.type ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1), (SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue > lane.queue ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1))),
some_lane AS
(SELECT lane.queue AS queue, lane.type AS type
FROM lane
 LIMIT %(sqla_jobs_lanes)s::INTEGER)
 SELECT CAST(some_lane.queue AS TEXT) AS queue, CAST(some_lane.type AS TEXT) AS type, (SELECT count(*) AS count_1
FROM (SELECT first_rows.id AS id, first_rows.run_at AS run_at
FROM (SELECT ready_row.id AS id, ready_row.run_at AS run_at
FROM job AS ready_row
WHERE ready_row.status = 'ready' AND ready_row.queue = some_lane.queue AND ready_row.type = some_lane.type AND ready_row.run_at <= statement_timestamp() ORDER BY ready_row.run_at, ready_row.id
 LIMIT %(sqla_jobs_cap)s::BIGINT) AS first_rows
 LIMIT CASE WHEN ((SELECT count(*) AS count_2
FROM some_lane) <= %(param_1)s::INTEGER) THEN %(sqla_jobs_cap)s::BIGINT ELSE (%(sqla_jobs_cap)s::BIGINT * %(param_2)s::BIGINT) / (SELECT count(*) AS count_2
FROM some_lane) + %(param_3)s::BIGINT END) AS "some") AS due, (SELECT count(*) AS count_3
FROM (SELECT first_rows.id AS id, first_rows.run_at AS run_at
FROM (SELECT ready_row.id AS id, ready_row.run_at AS run_at
FROM job AS ready_row
WHERE ready_row.status = 'ready' AND ready_row.queue = some_lane.queue AND ready_row.type = some_lane.type AND ready_row.run_at > statement_timestamp() ORDER BY ready_row.run_at, ready_row.id
 LIMIT %(sqla_jobs_cap)s::BIGINT) AS first_rows
 LIMIT CASE WHEN ((SELECT count(*) AS count_2
FROM some_lane) <= %(param_1)s::INTEGER) THEN %(sqla_jobs_cap)s::BIGINT ELSE (%(sqla_jobs_cap)s::BIGINT * %(param_2)s::BIGINT) / (SELECT count(*) AS count_2
FROM some_lane) + %(param_3)s::BIGINT END) AS "some") AS later, CAST(EXTRACT(EPOCH FROM statement_timestamp()) AS DOUBLE PRECISION) - CAST(EXTRACT(EPOCH FROM (SELECT ready_row.run_at
FROM job AS ready_row
WHERE ready_row.status = 'ready' AND ready_row.queue = some_lane.queue AND ready_row.type = some_lane.type AND ready_row.run_at <= statement_timestamp() ORDER BY ready_row.run_at, ready_row.id
 LIMIT 1)) AS DOUBLE PRECISION) AS age, CASE WHEN ((SELECT count(*) AS count_2
FROM some_lane) <= %(param_1)s::INTEGER) THEN %(sqla_jobs_cap)s::BIGINT ELSE (%(sqla_jobs_cap)s::BIGINT * %(param_2)s::BIGINT) / (SELECT count(*) AS count_2
FROM some_lane) + %(param_3)s::BIGINT END AS most
FROM some_lane;

-- tallies
WITH RECURSIVE lane(queue, type, run_at) AS
(SELECT first.queue AS queue, first.type AS type, first.run_at AS run_at
FROM (SELECT next_row.queue AS queue, next_row.type AS type, next_row.run_at AS run_at
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue >= '' ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1) AS first UNION ALL SELECT lane_row.queue AS queue, lane_row.type AS type, lane_row.run_at AS run_at
FROM lane JOIN job AS lane_row ON lane_row.id = coalesce((SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue = lane.queue AND next_row.type > lane.type ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1), (SELECT next_row.id
FROM job AS next_row
WHERE next_row.status = 'ready' AND next_row.queue > lane.queue ORDER BY next_row.queue, next_row.type, next_row.run_at
 LIMIT 1))),
some_lane AS
(SELECT lane.queue AS queue, lane.type AS type
FROM lane
 LIMIT %(sqla_jobs_lanes)s::INTEGER)
 SELECT CAST(%(param_1)s::VARCHAR AS TEXT) AS part, ready_rows.queue, ready_rows.type, ready_rows.attempts, count(*) AS number, CASE WHEN ((SELECT count(*) AS count_1
FROM some_lane) <= %(param_2)s::INTEGER) THEN %(sqla_jobs_cap)s::BIGINT ELSE (%(sqla_jobs_cap)s::BIGINT * %(param_3)s::BIGINT) / (SELECT count(*) AS count_1
FROM some_lane) + %(param_4)s::BIGINT END AS most
FROM (SELECT CAST(sampled.queue AS TEXT) AS queue, CAST(sampled.type AS TEXT) AS type, CAST(sampled.attempts AS INTEGER) AS attempts
FROM some_lane JOIN job AS sampled ON sampled.id = ANY (array((SELECT first_rows.id
FROM (SELECT ready_row.id AS id
FROM job AS ready_row
WHERE ready_row.status = 'ready' AND ready_row.queue = some_lane.queue AND ready_row.type = some_lane.type ORDER BY ready_row.run_at, ready_row.id
 LIMIT %(sqla_jobs_cap)s::BIGINT) AS first_rows
 LIMIT CASE WHEN ((SELECT count(*) AS count_1
FROM some_lane) <= %(param_2)s::INTEGER) THEN %(sqla_jobs_cap)s::BIGINT ELSE (%(sqla_jobs_cap)s::BIGINT * %(param_3)s::BIGINT) / (SELECT count(*) AS count_1
FROM some_lane) + %(param_4)s::BIGINT END)))) AS ready_rows GROUP BY ready_rows.queue, ready_rows.type, ready_rows.attempts UNION ALL SELECT CAST(%(param_5)s::VARCHAR AS TEXT) AS part, running_rows.queue, running_rows.type, running_rows.attempts, count(*) AS number, %(sqla_jobs_cap)s::BIGINT AS most
FROM (SELECT first_rows.queue AS queue, first_rows.type AS type, first_rows.attempts AS attempts
FROM (SELECT CAST(job.queue AS TEXT) AS queue, CAST(job.type AS TEXT) AS type, CAST(job.attempts AS INTEGER) AS attempts
FROM job
WHERE job.status = 'running' ORDER BY job.locked_by, job.id
 LIMIT %(sqla_jobs_cap)s::BIGINT) AS first_rows
 LIMIT (SELECT %(sqla_jobs_cap)s::BIGINT AS anon_1)) AS running_rows GROUP BY running_rows.queue, running_rows.type, running_rows.attempts UNION ALL SELECT CAST(%(param_6)s::VARCHAR AS TEXT) AS part, failed_rows.queue, failed_rows.type, failed_rows.attempts, count(*) AS number, %(sqla_jobs_cap)s::BIGINT AS most
FROM (SELECT first_rows.queue AS queue, first_rows.type AS type, first_rows.attempts AS attempts
FROM (SELECT CAST(NULL AS TEXT) AS queue, CAST(job.type AS TEXT) AS type, CAST(NULL AS INTEGER) AS attempts
FROM job
WHERE job.status IN ('done', 'failed', 'dead') AND job.status = 'failed' ORDER BY job.finished_at DESC, job.id DESC
 LIMIT %(sqla_jobs_cap)s::BIGINT) AS first_rows
 LIMIT (SELECT %(sqla_jobs_cap)s::BIGINT AS anon_1)) AS failed_rows GROUP BY failed_rows.queue, failed_rows.type, failed_rows.attempts UNION ALL SELECT CAST(%(param_7)s::VARCHAR AS TEXT) AS part, dead_rows.queue, dead_rows.type, dead_rows.attempts, count(*) AS number, %(sqla_jobs_cap)s::BIGINT AS most
FROM (SELECT first_rows.queue AS queue, first_rows.type AS type, first_rows.attempts AS attempts
FROM (SELECT CAST(NULL AS TEXT) AS queue, CAST(job.type AS TEXT) AS type, CAST(NULL AS INTEGER) AS attempts
FROM job
WHERE job.status IN ('done', 'failed', 'dead') AND job.status = 'dead' ORDER BY job.finished_at DESC, job.id DESC
 LIMIT %(sqla_jobs_cap)s::BIGINT) AS first_rows
 LIMIT (SELECT %(sqla_jobs_cap)s::BIGINT AS anon_1)) AS dead_rows GROUP BY dead_rows.queue, dead_rows.type, dead_rows.attempts UNION ALL SELECT CAST(%(param_8)s::VARCHAR AS TEXT) AS part, expired_rows.queue, expired_rows.type, expired_rows.attempts, count(*) AS number, %(sqla_jobs_cap)s::BIGINT AS most
FROM (SELECT first_rows.queue AS queue, first_rows.type AS type, first_rows.attempts AS attempts
FROM (SELECT CAST(NULL AS TEXT) AS queue, CAST(NULL AS TEXT) AS type, CAST(NULL AS INTEGER) AS attempts
FROM job
WHERE job.last_lease_expired_at IS NOT NULL AND job.last_lease_expired_at > (statement_timestamp() + CAST(%(param_9)s AS DOUBLE PRECISION) * INTERVAL '1 second') AND job.last_lease_expired_at <= statement_timestamp() ORDER BY job.last_lease_expired_at
 LIMIT %(sqla_jobs_cap)s::BIGINT) AS first_rows
 LIMIT (SELECT %(sqla_jobs_cap)s::BIGINT AS anon_1)) AS expired_rows GROUP BY expired_rows.queue, expired_rows.type, expired_rows.attempts;

-- oldest running
WITH running_row AS
(SELECT first_rows.id AS id, first_rows.type AS type, first_rows.queue AS queue, first_rows.locked_by AS locked_by, first_rows.started_at AS started_at, first_rows.locked_until AS locked_until, first_rows.is_over AS is_over
FROM (SELECT job.id AS id, CAST(job.type AS TEXT) AS type, CAST(job.queue AS TEXT) AS queue, CAST(job.locked_by AS TEXT) AS locked_by, CAST(EXTRACT(EPOCH FROM job.started_at) AS DOUBLE PRECISION) AS started_at, CAST(EXTRACT(EPOCH FROM job.locked_until) AS DOUBLE PRECISION) AS locked_until, coalesce(job.locked_until <= statement_timestamp(), true) AS is_over
FROM job
WHERE job.status = 'running' ORDER BY job.locked_by, job.id
 LIMIT %(sqla_jobs_cap)s::BIGINT) AS first_rows
 LIMIT (SELECT %(sqla_jobs_cap)s::BIGINT AS anon_1))
 SELECT clock.now, (SELECT count(*) AS count_1
FROM running_row
WHERE running_row.is_over) AS "over", clock.now - oldest.started_at AS age, oldest.id, oldest.type, oldest.queue, oldest.locked_by, oldest.started_at, oldest.locked_until, oldest.is_over
FROM (SELECT CAST(EXTRACT(EPOCH FROM statement_timestamp()) AS DOUBLE PRECISION) AS now) AS clock LEFT OUTER JOIN (SELECT running_row.id AS id, running_row.type AS type, running_row.queue AS queue, running_row.locked_by AS locked_by, running_row.started_at AS started_at, running_row.locked_until AS locked_until, running_row.is_over AS is_over
FROM running_row ORDER BY running_row.started_at NULLS LAST, running_row.id
 LIMIT 1) AS oldest ON true;

-- schedule counts
SELECT schedule_row.state, schedule_row.has_error, count(*) AS number, sum(schedule_row.slots_missed) AS slots_missed, sum(schedule_row.overlaps_skipped) AS overlaps_skipped
FROM (SELECT CASE WHEN (schedule.retired_at IS NOT NULL) THEN %(param_1)s::VARCHAR WHEN (lower(CAST(schedule.enabled AS TEXT)) IN (__[POSTCOMPILE_lower_1])) THEN %(param_2)s::VARCHAR ELSE %(param_3)s::VARCHAR END AS state, schedule.last_error IS NOT NULL AS has_error, CAST(schedule.slots_missed AS DOUBLE PRECISION) AS slots_missed, CAST(schedule.overlaps_skipped AS DOUBLE PRECISION) AS overlaps_skipped
FROM schedule ORDER BY schedule.id
 LIMIT %(sqla_jobs_cap)s::BIGINT) AS schedule_row GROUP BY schedule_row.state, schedule_row.has_error;

-- finished
SELECT job.id, (to_json(job.finished_at) #>> '{}') AS at
FROM job
WHERE job.status = 'done' AND job.status IN ('done', 'failed', 'dead') AND job.finished_at <= (statement_timestamp() + CAST(-%(sqla_jobs_age)s AS DOUBLE PRECISION) * INTERVAL '1 second') AND (job.finished_at, job.id) > (CAST(%(sqla_jobs_after_at)s::VARCHAR AS TIMESTAMP WITH TIME ZONE), %(sqla_jobs_after_id)s::BIGINT) ORDER BY job.finished_at, job.id
 LIMIT %(sqla_jobs_limit)s::INTEGER;

-- finished, locked
SELECT job.id, (to_json(job.finished_at) #>> '{}') AS at
FROM job
WHERE job.status = 'done' AND job.status IN ('done', 'failed', 'dead') AND job.finished_at <= (statement_timestamp() + CAST(-%(sqla_jobs_age)s AS DOUBLE PRECISION) * INTERVAL '1 second') AND (job.finished_at, job.id) > (CAST(%(sqla_jobs_after_at)s::VARCHAR AS TIMESTAMP WITH TIME ZONE), %(sqla_jobs_after_id)s::BIGINT) ORDER BY job.finished_at, job.id
 LIMIT %(sqla_jobs_limit)s::INTEGER FOR UPDATE OF job SKIP LOCKED;

-- finished, counted
SELECT count(*) AS count_1
FROM (SELECT job.id AS id, (to_json(job.finished_at) #>> '{}') AS at
FROM job
WHERE job.status = 'done' AND job.status IN ('done', 'failed', 'dead') AND job.finished_at <= (statement_timestamp() + CAST(-%(sqla_jobs_age)s AS DOUBLE PRECISION) * INTERVAL '1 second') ORDER BY job.finished_at, job.id
 LIMIT %(sqla_jobs_limit)s::INTEGER) AS "some";

-- undated
SELECT job.id, (to_json(job.finished_at) #>> '{}') AS at
FROM job
WHERE job.status = 'dead' AND job.status IN ('done', 'failed', 'dead') AND job.finished_at IS NULL ORDER BY job.finished_at, job.id
 LIMIT %(sqla_jobs_limit)s::INTEGER;

-- date
WITH given AS MATERIALIZED
(SELECT each.id AS id
FROM json_to_recordset(CAST(%(sqla_jobs_rows)s::VARCHAR AS JSON)) AS each(id BIGINT))
 UPDATE job SET finished_at=statement_timestamp() WHERE job.id = ANY (array((SELECT given.id
FROM given)));

-- copy
WITH given AS MATERIALIZED
(SELECT each.id AS id
FROM json_to_recordset(CAST(%(sqla_jobs_rows)s::VARCHAR AS JSON)) AS each(id BIGINT))
 INSERT INTO archived_job (archived_at, attempts, claims, created_at, errors, finished_at, id, idempotency_key, last_error, last_lease_expired_at, lease_expirations, locked_by, locked_until, max_attempts, payload, queue, refunds, result, run_at, schedule_id, slot, started_at, status, trace, type) SELECT statement_timestamp() AS anon_1, job.attempts, job.claims, job.created_at, job.errors, job.finished_at, job.id, job.idempotency_key, job.last_error, job.last_lease_expired_at, job.lease_expirations, job.locked_by, job.locked_until, job.max_attempts, job.payload, job.queue, job.refunds, job.result, job.run_at, job.schedule_id, job.slot, job.started_at, job.status, job.trace, job.type
FROM job
WHERE job.id = ANY (array((SELECT given.id
FROM given)));

-- remove what was copied
WITH given AS MATERIALIZED
(SELECT each.id AS id
FROM json_to_recordset(CAST(%(sqla_jobs_rows)s::VARCHAR AS JSON)) AS each(id BIGINT))
 DELETE FROM job WHERE job.id = ANY (array((SELECT given.id
FROM given))) RETURNING job.id;

-- archived
SELECT archived_job.id, (to_json(archived_job.archived_at) #>> '{}') AS at
FROM archived_job
WHERE archived_job.archived_at <= (statement_timestamp() + CAST(-%(sqla_jobs_age)s AS DOUBLE PRECISION) * INTERVAL '1 second') AND (archived_job.archived_at, archived_job.id) > (CAST(%(sqla_jobs_after_at)s::VARCHAR AS TIMESTAMP WITH TIME ZONE), %(sqla_jobs_after_id)s::BIGINT) ORDER BY archived_job.archived_at, archived_job.id
 LIMIT %(sqla_jobs_limit)s::INTEGER;
