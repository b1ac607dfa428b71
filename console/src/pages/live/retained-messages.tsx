import { ActionIcon, Button, Group, Modal, Skeleton, Stack, Switch, Text, TextInput } from '@mantine/core';
import { useDebouncedValue } from '@mantine/hooks';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconEye, IconSearch, IconTrash } from '@tabler/icons-react';
import { useState } from 'react';
import { api, unwrap, useChange, usePages, useRead, type Schemas } from '../../api/client';
import { prettyPayload } from '../../api/mqtt';
import { withQuery } from '../../api/objects';
import { mayOnNode, useCaller } from '../../api/session';
import { formatBytes } from '../../format';
import { Confirm } from '../../ui/confirm';
import { CopyText } from '../../ui/copy';
import { DataTable, pagesOf, type Column } from '../../ui/data-table';
import { quoted, ShowCall } from '../../ui/show-call';
import { EmptyState, ErrorState } from '../../ui/states';
import { Ago } from '../../ui/time';
import { useUrlState } from '../../ui/url-state';
import { filterProblem } from './topics';

type Retained = Schemas['RetainedInfo'];

const pageSize = 200;

export function RetainedMessages() {
  const { t } = useLingui();
  const caller = useCaller();
  const [search, setSearch] = useUrlState('retained');
  const [wanted] = useDebouncedValue(search.trim(), 250);
  const [withSystem, setWithSystem] = useUrlState('system');
  const problem = wanted === '' ? null : filterProblem(wanted);
  // # matches no topic that begins with $ (MQTT 5, section 4.7.2).
  const filter = wanted !== '' && !problem ? wanted : withSystem === '' ? '#' : '';
  const [open, setOpen] = useState<string | null>(null);
  const [deleting, setDeleting] = useState<Retained | null>(null);
  const list = usePages<Retained>(
    ['retained', filter],
    (after, signal) =>
      unwrap(
        api.GET('/api/v1/retained-messages', {
          params: { query: { after, limit: pageSize, ...(filter ? { matches_filter: filter } : {}) } },
          signal,
        }),
      ),
    { every: 10_000 },
  );
  const columns: Column<Retained>[] = [
    { id: 'topic', header: t`Topic`, cell: (row) => <span className="mono">{row.topic}</span> },
    { id: 'size', header: t`Size`, align: 'right', cell: (row) => formatBytes(row.payload_bytes) },
    { id: 'qos', header: t`QoS`, align: 'right', cell: (row) => row.qos },
    { id: 'published', header: t`Published`, cell: (row) => <Ago ms={row.published_at_ms} /> },
    { id: 'expires', header: t`Expires`, cell: (row) => <Ago ms={row.expires_at_ms} />, isHidden: true },
    { id: 'publisher', header: t`Publisher`, cell: (row) => <span className="mono">{row.publisher ?? '–'}</span> },
    {
      id: 'actions',
      header: t`Action`,
      align: 'right',
      cell: (row) => (
        <span className="row-actions">
          <ActionIcon
            size="sm"
            title={t`Show the payload`}
            aria-label={t`Show the payload of ${row.topic}`}
            onClick={() => setOpen(row.topic)}
          >
            <IconEye size={15} />
          </ActionIcon>
          {mayOnNode(caller, 'operator') && (
            <ActionIcon
              size="sm"
              title={t`Delete`}
              aria-label={t`Delete ${row.topic}`}
              onClick={() => setDeleting(row)}
            >
              <IconTrash size={15} />
            </ActionIcon>
          )}
        </span>
      ),
    },
  ];
  return (
    <>
      <DataTable
        name="retained"
        label={t`Retained messages`}
        columns={columns}
        rowKey={(row) => row.topic}
        {...pagesOf(list)}
        height="calc(100dvh - 300px)"
        toolbar={
          <>
            <TextInput
              aria-label={t`Topic filter`}
              placeholder={t`Topic filter, such as plant/#`}
              classNames={{ input: 'mono' }}
              leftSection={<IconSearch size={14} />}
              value={search}
              error={problem ? t`not a topic filter` : false}
              onChange={(event) => setSearch(event.currentTarget.value)}
              w={260}
            />
            {wanted === '' && (
              <Switch
                label={t`Also of the node itself ($SYS)`}
                checked={withSystem !== ''}
                onChange={(event) => setWithSystem(event.currentTarget.checked ? '1' : '')}
              />
            )}
            <div className="table-actions">
              <ShowCall
                method="GET"
                path={withQuery('/api/v1/retained-messages', { matches_filter: filter })}
                ctl={filter === '' ? 'retained list' : `retained list --filter ${quoted(filter)}`}
              />
            </div>
          </>
        }
        empty={
          wanted ? (
            <EmptyState title={<Trans>No retained message matches</Trans>}>
              <Trans>Change the filter. plant/# matches all topics below plant.</Trans>
            </EmptyState>
          ) : (
            <EmptyState title={<Trans>No retained messages</Trans>}>
              <Trans>A message that is published with "Retain" is kept, and sent to each later subscriber.</Trans>
            </EmptyState>
          )
        }
      />
      {open !== null && <RetainedPayload topic={open} onClose={() => setOpen(null)} />}
      {deleting && <DeleteRetained message={deleting} onClose={() => setDeleting(null)} />}
    </>
  );
}

function RetainedPayload({ topic, onClose }: { topic: string; onClose: () => void }) {
  const message = useRead(['retained', 'one', topic], (signal) =>
    unwrap(api.GET('/api/v1/retained-messages/{topic}', { params: { path: { topic } }, signal })),
  );
  const data = message.data;
  const bytes =
    data === undefined
      ? undefined
      : data.payload_encoding === 'base64'
        ? Uint8Array.from(atob(data.payload ?? ''), (letter) => letter.charCodeAt(0))
        : new TextEncoder().encode(data.payload ?? '');
  return (
    <Modal opened onClose={onClose} title={<span className="mono">{topic}</span>} size="lg">
      <Stack gap="sm">
        {message.error ? (
          <ErrorState error={message.error} />
        ) : bytes === undefined ? (
          <Skeleton height={80} />
        ) : (
          <CopyText text={prettyPayload(bytes)} />
        )}
        <Group justify="space-between">
          <ShowCall
            method="GET"
            path={`/api/v1/retained-messages/${encodeURIComponent(topic)}`}
            ctl={`retained show ${quoted(topic)}`}
          />
          <Button variant="default" onClick={onClose}>
            <Trans>Close</Trans>
          </Button>
        </Group>
      </Stack>
    </Modal>
  );
}

function DeleteRetained({ message, onClose }: { message: Retained; onClose: () => void }) {
  const { topic } = message;
  const remove = useChange(
    () => unwrap(api.DELETE('/api/v1/retained-messages/{topic}', { params: { path: { topic } } })),
    [['retained']],
  );
  return (
    <Confirm
      title={<Trans>Delete the retained message?</Trans>}
      action={<Trans>Delete</Trans>}
      call={{
        method: 'DELETE',
        path: `/api/v1/retained-messages/${encodeURIComponent(topic)}`,
        ctl: `retained delete ${quoted(topic)}`,
      }}
      isPending={remove.isPending}
      error={remove.error}
      onClose={onClose}
      onConfirm={() => remove.mutate(undefined, { onSuccess: onClose })}
    >
      <Text size="sm">
        <Trans>
          This deletes the retained message of the topic {topic}. Clients that subscribe later do not receive it.
        </Trans>
      </Text>
    </Confirm>
  );
}
