import { Button, Group as Row, JsonInput, NumberInput, Progress, Stack, Text, TextInput } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlayerStop, IconSend } from '@tabler/icons-react';
import { useEffect, useRef, useState, type FormEvent } from 'react';
import { Link } from 'wouter';
import { type Page, type Schemas } from '../../api/client';
import { objectPath, send, withQuery } from '../../api/objects';
import { formatNumber } from '../../format';
import { Confirm } from '../../ui/confirm';
import { DataTable, type Column } from '../../ui/data-table';
import { Panel } from '../../ui/page';
import { ShowCall } from '../../ui/show-call';
import { StateBadge } from '../../ui/state-badge';
import { EmptyState } from '../../ui/states';
import { CommandOutcome } from '../devices/control-panel';
import { groupsPath } from './group-kind';

interface Outcome {
  device: string;
  command?: Schemas['Command'];
  error?: string;
}

interface Run {
  total: number;
  outcomes: Outcome[];
  isRunning: boolean;
}

const parallel = 8;
const membersPerPage = 500;
const maxMembers = 5_000;

async function membersOf(id: string, signal: AbortSignal): Promise<string[]> {
  const members: string[] = [];
  let after: string | null | undefined;
  do {
    const path: string = withQuery(`${objectPath(groupsPath, id)}/devices`, { limit: membersPerPage, after });
    const page: Page<Schemas['Device']> = await send('GET', path, { signal });
    members.push(...page.data.map((device) => device.id));
    after = page.next;
  } while (after && members.length < maxMembers);
  return members.slice(0, maxMembers);
}

function parsed(text: string): { value: unknown } | undefined {
  if (text.trim() === '') return { value: null };
  try {
    return { value: JSON.parse(text) };
  } catch {
    return undefined;
  }
}

/** Sends one command to all members, and shows how it ended for each. */
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
  const [method, setMethod] = useState('');
  const [params, setParams] = useState('{}');
  const [waitS, setWaitS] = useState(0);
  const [run, setRun] = useState<Run>();
  const [error, setError] = useState<string>();
  const [isAsking, setAsking] = useState(false);
  const abort = useRef<AbortController | null>(null);
  useEffect(() => () => abort.current?.abort(), []);
  const parameters = parsed(params);
  const body = { method, params: parameters?.value, expires_in_s: waitS };

  const start = async () => {
    setAsking(false);
    setError(undefined);
    const control = new AbortController();
    abort.current = control;
    try {
      const devices = await membersOf(id, control.signal);
      setRun({ total: devices.length, outcomes: [], isRunning: true });
      const rest = [...devices].reverse();
      const work = async () => {
        for (let device = rest.pop(); device !== undefined && !control.signal.aborted; device = rest.pop()) {
          const outcome: Outcome = { device };
          try {
            outcome.command = await send('POST', `/api/v1/devices/${encodeURIComponent(device)}/commands`, {
              body,
              signal: control.signal,
            });
          } catch (failure) {
            if (control.signal.aborted) return;
            outcome.error = (failure as Error).message;
          }
          setRun((previous) => previous && { ...previous, outcomes: [...previous.outcomes, outcome] });
        }
      };
      await Promise.all(Array.from({ length: parallel }, work));
    } catch (failure) {
      if (!control.signal.aborted) setError((failure as Error).message);
    }
    setRun((previous) => previous && { ...previous, isRunning: false });
  };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (parameters && method.trim() !== '') setAsking(true);
  };
  return (
    <div className="page">
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
              disabled={!mayChange}
              onChange={(event) => setMethod(event.currentTarget.value)}
            />
            <JsonInput
              label={t`Parameters`}
              autosize
              minRows={2}
              maxRows={10}
              classNames={{ input: 'mono' }}
              value={params}
              disabled={!mayChange}
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
              disabled={!mayChange}
              onChange={(next) => setWaitS(Number(next))}
            />
            {error && (
              <Text size="sm" c="var(--tg-critical)" role="alert">
                {error}
              </Text>
            )}
            <Row justify="space-between">
              <ShowCall
                method="POST"
                path="/api/v1/devices/DEVICE/commands"
                body={body}
                ctl={`commands send DEVICE ${method || 'METHOD'} '${params}'`}
              />
              <Button
                type="submit"
                leftSection={<IconSend size={14} />}
                disabled={!mayChange || !parameters || method.trim() === '' || run?.isRunning || members === 0}
              >
                <Trans>Send to {formatNumber(members ?? 0)} devices</Trans>
              </Button>
            </Row>
          </Stack>
        </form>
      </Panel>
      {run && <Results run={run} onStop={() => abort.current?.abort()} />}
      {isAsking && (
        <Confirm
          isSafe
          title={
            <Trans>
              Send {method} to {formatNumber(members ?? 0)} devices?
            </Trans>
          }
          action={<Trans>Send</Trans>}
          isPending={false}
          onClose={() => setAsking(false)}
          onConfirm={() => void start()}
        >
          <Text size="sm">
            <Trans>All members of the group get the command, {parallel} at a time, while this page is open.</Trans>
          </Text>
        </Confirm>
      )}
    </div>
  );
}

function Results({ run, onStop }: { run: Run; onStop: () => void }) {
  const { t } = useLingui();
  const { total, outcomes, isRunning } = run;
  const succeeded = outcomes.filter(({ command }) => command?.state === 'success').length;
  const waiting = outcomes.filter(
    ({ command }) => command && ['pending', 'sent', 'acknowledged'].includes(command.state),
  ).length;
  const failed = outcomes.length - succeeded - waiting;
  const columns: Column<Outcome>[] = [
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
      sort: (row) => row.command?.state ?? 'failed',
      cell: (row) =>
        row.command ? <CommandOutcome command={row.command} /> : <StateBadge health="critical">{row.error}</StateBadge>,
    },
    {
      id: 'answer',
      header: t`Answer`,
      cell: (row) => (
        <span className="mono">{row.command?.result == null ? '–' : JSON.stringify(row.command.result)}</span>
      ),
    },
  ];
  return (
    <Panel
      title={<Trans>Results</Trans>}
      actions={
        isRunning && (
          <Button variant="default" leftSection={<IconPlayerStop size={14} />} onClick={onStop}>
            <Trans>Stop</Trans>
          </Button>
        )
      }
    >
      <Stack gap="sm">
        <Progress.Root size="lg" aria-label={t`Progress`}>
          <Progress.Section value={(succeeded / Math.max(total, 1)) * 100} color="tide" />
          <Progress.Section value={(waiting / Math.max(total, 1)) * 100} color="gray" />
          <Progress.Section value={(failed / Math.max(total, 1)) * 100} color="red" />
        </Progress.Root>
        <Text size="sm" aria-live="polite">
          <Trans>
            {formatNumber(outcomes.length)} of {formatNumber(total)}: {formatNumber(succeeded)} done,{' '}
            {formatNumber(waiting)} waiting, {formatNumber(failed)} failed
          </Trans>
        </Text>
        <DataTable
          name="group-command"
          label={t`Results`}
          columns={columns}
          rows={outcomes}
          rowKey={(row) => row.device}
          height={420}
          empty={<EmptyState title={<Trans>Nothing yet</Trans>} />}
        />
      </Stack>
    </Panel>
  );
}
