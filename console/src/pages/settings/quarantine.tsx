/** Damaged files that the node was started without. */

import { Button, Drawer, Stack, Text, Title } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { useState, type ReactNode } from 'react';
import { type Schemas } from '../../api/client';
import { objectPath, useWholeList } from '../../api/objects';
import { mayOnNode, useCaller } from '../../api/session';
import { formatBytes, formatNumber } from '../../format';
import { ConfirmDeletion } from '../../ui/confirm-deletion';
import { DataTable, type Column } from '../../ui/data-table';
import { Facts } from '../../ui/page';
import { quoted, ShowCall } from '../../ui/show-call';
import { EmptyState } from '../../ui/states';
import { Ago } from '../../ui/time';

type Part = Schemas['QuarantinedPart'];

const path = '/api/v1/quarantine';

const bytesOf = ({ files }: Part) => files.reduce((sum, { bytes }) => sum + bytes, 0);

export function Quarantine() {
  const { t } = useLingui();
  const caller = useCaller();
  const list = useWholeList<Part>(path, { every: 30_000 });
  const [opened, setOpened] = useState<Part>();
  const [deleted, setDeleted] = useState<Part>();
  const columns: Column<Part>[] = [
    {
      id: 'part',
      header: t`Part`,
      sort: (row) => row.part,
      cell: (row) => (
        <button type="button" className="link-button" onClick={() => setOpened(row)}>
          {row.part}
        </button>
      ),
    },
    { id: 'reason', header: t`Damage`, cell: (row) => <span title={row.reason}>{row.reason}</span> },
    {
      id: 'lost',
      header: t`Lost`,
      cell: (row) => <span title={row.lost.join('; ')}>{row.lost.join('; ') || '–'}</span>,
    },
    { id: 'at', header: t`Found`, sort: (row) => row.at_ms, cell: (row) => <Ago ms={row.at_ms} /> },
    { id: 'files', header: t`Files`, align: 'right', cell: (row) => formatNumber(row.files.length) },
    { id: 'size', header: t`Size`, align: 'right', sort: bytesOf, cell: (row) => formatBytes(bytesOf(row)) },
  ];
  return (
    <>
      <DataTable
        name="quarantine"
        label={t`Damaged files`}
        columns={columns}
        rows={list.data}
        rowKey={(row) => row.id}
        error={list.error}
        retry={() => void list.refetch()}
        toolbar={
          <>
            <Text size="sm" c="dimmed">
              <Trans>
                With store.on_damage = "quarantine", the node starts without damaged data, and keeps the files here for
                examination.
              </Trans>
            </Text>
            <div className="table-actions">
              <ShowCall method="GET" path={path} ctl="quarantine list" />
            </div>
          </>
        }
        empty={
          <EmptyState title={<Trans>No damaged files</Trans>}>
            <Trans>The node was started with all of its data.</Trans>
          </EmptyState>
        }
      />
      {opened && (
        <Drawer opened onClose={() => setOpened(undefined)} position="right" size="lg" title={opened.part}>
          <Stack gap="md">
            <Facts
              rows={[
                [<Trans>Damage</Trans>, opened.reason],
                [<Trans>Found</Trans>, <Ago ms={opened.at_ms} />],
                ...opened.lost.map((lost): [ReactNode, ReactNode] => [<Trans>Lost</Trans>, lost]),
              ]}
            />
            <Title order={3}>
              <Trans>Files</Trans>
            </Title>
            <Facts
              rows={opened.files.map((file) => [
                <span className="mono">{file.original}</span>,
                formatBytes(file.bytes),
              ])}
            />
          </Stack>
          <div className="drawer-footer">
            <ShowCall
              method="DELETE"
              path={objectPath(path, opened.id)}
              ctl={`quarantine delete ${quoted(opened.id)}`}
            />
            {mayOnNode(caller, 'admin') && (
              <Button
                color="red.8"
                onClick={() => {
                  setDeleted(opened);
                  setOpened(undefined);
                }}
              >
                <Trans>Delete the files</Trans>
              </Button>
            )}
          </div>
        </Drawer>
      )}
      {deleted && <DeletePart part={deleted} onClose={() => setDeleted(undefined)} />}
    </>
  );
}

function DeletePart({ part, onClose }: { part: Part; onClose: () => void }) {
  const { t } = useLingui();
  return (
    <ConfirmDeletion
      title={<Trans>Delete the damaged files?</Trans>}
      action={<Trans>Delete the files</Trans>}
      call={{ path: objectPath(path, part.id), ctl: `quarantine delete ${quoted(part.id)}` }}
      onClose={onClose}
      invalidates={[[path], ['node']]}
      message={t`The files were deleted.`}
    >
      <Text size="sm">
        <Trans>
          This deletes {formatNumber(part.files.length)} files of {part.part} ({formatBytes(bytesOf(part))}). What could
          still be read from them is lost.
        </Trans>
      </Text>
    </ConfirmDeletion>
  );
}
