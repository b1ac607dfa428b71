import { Button, Group as Row, JsonInput, NumberInput, Stack, Switch, Text, TextInput } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconSend } from '@tabler/icons-react';
import { useState, type FormEvent } from 'react';
import { Link } from 'wouter';
import { useChange, type Schemas } from '../../api/client';
import { objectPath, send, useList, useObject } from '../../api/objects';
import { formatNumber } from '../../format';
import { Confirm } from '../../ui/confirm';
import { DataTable, pagesOf, type Column } from '../../ui/data-table';
import { Panel } from '../../ui/page';
import { quoted, ShowCall, type Call } from '../../ui/show-call';
import { EmptyState, ErrorState, Loading } from '../../ui/states';
import { useUrlState } from '../../ui/url-state';
import { commandDuration, CommandOutcome } from '../devices/control-panel';
import { CancelJob, JobProgress, jobsPath, JobStateBadge, type Job } from '../jobs/job';
import { groupsPath } from './group-kind';

const refreshMs = 1_500;

function parsed(text: string): { value: unknown } | undefined {
  if (text.trim() === '') return { value: null };
  try {
    return { value: JSON.parse(text) };
  } catch {
    return undefined;
  }
}

/** Sends one command to all members, and shows how it ended for each. The last one is part of the address. */
export function GroupCommand({
  id,
  members,
  mayChange,
}: {
  id: string;
  members: number | undefined;
  mayChange: boolean;
}) {
  const { t } = useLingui();
  const [batch, setBatch] = useUrlState('batch');
  const [method, setMethod] = useState('');
  const [params, setParams] = useState('{}');
  const [waitS, setWaitS] = useState(0);
  const [isOneWay, setOneWay] = useState(false);
  const [isAsking, setAsking] = useState(false);
  const parameters = parsed(params);
  const path = `${objectPath(groupsPath, id)}/commands`;
  const body = {
    method: method.trim(),
    params: parameters?.value ?? null,
    expires_in_s: waitS,
    ...(isOneWay ? { one_way: true } : {}),
  };
  const start = useChange(() => send<Job>('POST', path, { body }), [[jobsPath]]);
  const call: Call = {
    method: 'POST',
    path,
    body,
    ctl: isOneWay
      ? undefined
      : `device-groups send ${quoted(id)} ${quoted(method || 'METHOD')} ${quoted(params)} --expires-in-s ${waitS}`,
  };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (parameters && method.trim() !== '') setAsking(true);
  };
  return (
    <div className="page">
      {mayChange && (
        <Panel title={<Trans>Command to all members</Trans>}>
          <form onSubmit={submit}>
            <Stack gap="sm" maw={620}>
              <TextInput
                label={t`Method`}
                description={t`A method that the devices know, or a function of their thing model.`}
                required
                maxLength={255}
                classNames={{ input: 'mono' }}
                value={method}
                onChange={(event) => setMethod(event.currentTarget.value)}
              />
              <JsonInput
                label={t`Parameters`}
                autosize
                minRows={2}
                maxRows={10}
                classNames={{ input: 'mono' }}
                value={params}
                error={parameters ? undefined : t`This is not valid JSON`}
                onChange={setParams}
              />
              <NumberInput
                label={t`Seconds to wait for devices that are not connected`}
                description={t`0: the command ends at once for them.`}
                min={0}
                w={320}
                maw="100%"
                value={waitS}
                onChange={(next) => setWaitS(Number(next))}
              />
              <Switch
                label={t`The devices do not answer`}
                description={t`The command has succeeded when a device has received it.`}
                checked={isOneWay}
                onChange={(event) => setOneWay(event.currentTarget.checked)}
              />
              <Row justify="space-between">
                <ShowCall {...call} />
                <Button
                  type="submit"
                  leftSection={<IconSend size={14} />}
                  disabled={!parameters || method.trim() === '' || members === 0}
                >
                  <Trans>Send to {formatNumber(members ?? 0)} devices</Trans>
                </Button>
              </Row>
            </Stack>
          </form>
        </Panel>
      )}
      {batch === '' ? (
        !mayChange && (
          <EmptyState title={<Trans>You may not send commands</Trans>}>
            <Trans>Commands to a group need the role operator.</Trans>
          </EmptyState>
        )
      ) : (
        <Results key={batch} id={batch} />
      )}
      {isAsking && (
        <Confirm
          isSafe
          title={
            <Trans>
              Send {method} to {formatNumber(members ?? 0)} devices?
            </Trans>
          }
          action={<Trans>Send</Trans>}
          call={call}
          isPending={start.isPending}
          error={start.error}
          onClose={() => setAsking(false)}
          onConfirm={() =>
            start.mutate(undefined, {
              onSuccess: (job) => {
                setAsking(false);
                setBatch(job.id);
              },
            })
          }
        >
          <Text size="sm">
            <Trans>All members of the group get the command. The node continues when this page is left.</Trans>
          </Text>
        </Confirm>
      )}
    </div>
  );
}

/** The job that sends the commands, and the commands with their answers. */
function Results({ id }: { id: string }) {
  const { t } = useLingui();
  const job = useObject<Job>(jobsPath, id, { every: refreshMs });
  const list = useList<Schemas['Command']>(
    '/api/v1/commands',
    { batch: id },
    { every: refreshMs, enabled: job.data !== undefined, pageSize: 200 },
  );
  if (!job.data) {
    return job.error ? <ErrorState error={job.error} retry={() => void job.refetch()} /> : <Loading />;
  }
  const columns: Column<Schemas['Command']>[] = [
    {
      id: 'device',
      header: t`Device`,
      sort: (row) => row.device,
      cell: (row) => (
        <Link href={`/devices/${encodeURIComponent(row.device)}?tab=commands`} className="link">
          {row.device}
        </Link>
      ),
    },
    {
      id: 'outcome',
      header: t`Result`,
      sort: (row) => row.state,
      cell: (row) => <CommandOutcome command={row} />,
    },
    {
      id: 'duration',
      header: t`Duration`,
      align: 'right',
      cell: commandDuration,
    },
    {
      id: 'answer',
      header: t`Answer`,
      cell: (row) => <span className="mono">{row.result == null ? '–' : JSON.stringify(row.result)}</span>,
    },
  ];
  return (
    <Panel
      title={<Trans>Results</Trans>}
      actions={
        <>
          <JobStateBadge job={job.data} />
          <CancelJob job={job.data} />
        </>
      }
    >
      <Stack gap="sm">
        <JobProgress job={job.data} />
        {job.data.failures.map(({ subject, reason }) => (
          <Text key={subject} size="sm" c="var(--tg-critical)">
            {subject}: {reason}
          </Text>
        ))}
        <DataTable
          name="group-command"
          label={t`Results`}
          columns={columns}
          rowKey={(row) => String(row.id)}
          {...pagesOf(list)}
          height={420}
          empty={<EmptyState title={<Trans>Nothing was sent yet</Trans>} />}
        />
      </Stack>
    </Panel>
  );
}
