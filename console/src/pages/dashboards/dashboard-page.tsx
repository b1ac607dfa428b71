import { Button, Menu, Text, TextInput } from '@mantine/core';
import { useFullscreenElement } from '@mantine/hooks';
import { notifications } from '@mantine/notifications';
import { Plural, Trans, useLingui } from '@lingui/react/macro';
import { IconDots, IconDownload, IconEdit, IconMaximize, IconPlus, IconShare, IconTrash } from '@tabler/icons-react';
import { useMemo, useState } from 'react';
import { useLocation, useParams } from 'wouter';
import { isStored, objectPath, useObject, useSave } from '../../api/objects';
import { mayInNamespace, mayOnNode, useCaller } from '../../api/session';
import { ConfirmDeletion } from '../../ui/confirm-deletion';
import { download } from '../../ui/download';
import { Page } from '../../ui/page';
import { PendingPage } from '../../ui/pending-page';
import { ShowCall } from '../../ui/show-call';
import { SpanSelect, useSpan } from '../../ui/span-select';
import { EmptyState } from '../../ui/states';
import { useUrlState } from '../../ui/url-state';
import { isVersionConflict, VersionConflict } from '../../ui/version-conflict';
import { DashboardContext, dashboardSource } from './card-data';
import { CardEditor } from './card-editor';
import { cardKinds } from './card-kind';
import { bodyOf, newCard, path, placed, type Card, type StoredDashboard } from './dashboard';
import './dashboards.css';
import { Grid } from './grid';
import { ShareLinks } from './share-links';

export default function DashboardPage() {
  const id = decodeURIComponent(useParams<{ id: string }>().id ?? '');
  const dashboard = useObject<StoredDashboard>(path, id, { every: 10_000 });
  if (!dashboard.data) {
    return (
      <PendingPage
        title={id}
        query={dashboard}
        missing={<EmptyState title={<Trans>There is no dashboard with this id</Trans>} />}
      />
    );
  }
  const { data } = dashboard;
  return <Dashboard stored={data} read={async () => (await dashboard.refetch({ throwOnError: true })).data ?? data} />;
}

interface DashboardProps {
  stored: StoredDashboard;
  /** Reads the newest version. */
  read: () => Promise<StoredDashboard>;
}

function Dashboard({ stored, read }: DashboardProps) {
  const { t } = useLingui();
  const caller = useCaller();
  const [, navigate] = useLocation();
  const [edit, setEdit] = useUrlState('edit');
  const { span, spanMs, setSpan } = useSpan('1h');
  // What is edited, with the version that it began with, and that version.
  const [base, setBase] = useState<StoredDashboard | null>(null);
  const [draft, setDraft] = useState<StoredDashboard | null>(null);
  const [edited, setEdited] = useState<Card | null>(null);
  const [isSharing, setSharing] = useState(false);
  const [isDeleting, setDeleting] = useState(false);
  const { ref, toggle } = useFullscreenElement<HTMLDivElement>();
  const save = useSave<StoredDashboard>(path);
  // Of its own, so that a conflict stays visible until it is resolved.
  const resolution = useSave<StoredDashboard>(path);
  const isOperator =
    stored.namespace === null ? mayOnNode(caller, 'operator') : mayInNamespace(caller, 'operator', stored.namespace);
  const mayChange = isStored(stored) && isOperator;
  const isEditing = edit !== '' && mayChange;
  const shown = isEditing ? (draft ?? stored) : stored;
  const context = useMemo(
    () => ({ source: dashboardSource(stored.id, stored.version), spanMs, mayControl: isOperator }),
    [isOperator, spanMs, stored.id, stored.version],
  );
  const change = (next: Partial<StoredDashboard>) => {
    if (draft === null) setBase(stored);
    setDraft((previous) => ({ ...(previous ?? stored), ...next }));
  };
  const stopEditing = () => {
    setDraft(null);
    setBase(null);
    save.reset();
    setEdit('');
  };
  const onSaved = () => {
    stopEditing();
    notifications.show({ message: t`The dashboard was saved.` });
  };
  const done = () => {
    if (draft === null) setEdit('');
    else save.mutate({ id: draft.id, version: draft.version, body: bodyOf(draft) }, { onSuccess: onSaved });
  };
  const add = (
    <Menu position="bottom-start">
      <Menu.Target>
        <Button variant="default" leftSection={<IconPlus size={14} />}>
          <Trans>Add a card</Trans>
        </Button>
      </Menu.Target>
      <Menu.Dropdown>
        {cardKinds().map(({ value, label }) => (
          <Menu.Item key={value} onClick={() => setEdited(newCard(shown.cards, value))}>
            {label}
          </Menu.Item>
        ))}
      </Menu.Dropdown>
    </Menu>
  );
  return (
    <Page
      title={shown.name || shown.id}
      description={shown.description}
      actions={
        isEditing ? (
          <>
            {add}
            <Button variant="default" onClick={stopEditing}>
              <Trans>Cancel</Trans>
            </Button>
            <Button loading={save.isPending} onClick={done}>
              <Trans>Save</Trans>
            </Button>
          </>
        ) : (
          <>
            <SpanSelect value={span} onChange={setSpan} />
            {mayChange && (
              <>
                <Button variant="default" leftSection={<IconEdit size={14} />} onClick={() => setEdit('1')}>
                  <Trans>Edit</Trans>
                </Button>
                <Button variant="default" leftSection={<IconShare size={14} />} onClick={() => setSharing(true)}>
                  <Trans>Share</Trans>
                </Button>
              </>
            )}
            <Menu>
              <Menu.Target>
                <Button variant="default" aria-label={t`More actions`}>
                  <IconDots size={16} />
                </Button>
              </Menu.Target>
              <Menu.Dropdown>
                <Menu.Item leftSection={<IconMaximize size={14} />} onClick={() => void toggle()}>
                  <Trans>Full screen</Trans>
                </Menu.Item>
                <Menu.Item
                  leftSection={<IconDownload size={14} />}
                  onClick={() =>
                    download(
                      `${stored.name || stored.id}.json`,
                      JSON.stringify(bodyOf(stored), null, 2),
                      'application/json',
                    )
                  }
                >
                  <Trans>Export</Trans>
                </Menu.Item>
                {mayChange && (
                  <Menu.Item leftSection={<IconTrash size={14} />} onClick={() => setDeleting(true)}>
                    <Trans>Delete</Trans>
                  </Menu.Item>
                )}
              </Menu.Dropdown>
            </Menu>
            <ShowCall method="GET" path={objectPath(path, stored.id)} ctl={`dashboards show ${stored.id}`} />
          </>
        )
      }
    >
      {isEditing && (
        <div className="row wrap">
          <TextInput
            className="grow"
            label={t`Name`}
            maxLength={200}
            value={shown.name}
            onChange={(event) => change({ name: event.currentTarget.value })}
          />
          <TextInput
            className="grow"
            label={t`Description`}
            maxLength={1000}
            value={shown.description}
            onChange={(event) => change({ description: event.currentTarget.value })}
          />
        </div>
      )}
      {isEditing && draft && base && isVersionConflict(save.error) ? (
        <VersionConflict
          base={bodyOf(base)}
          mine={bodyOf(draft)}
          read={async () => {
            const theirs = await read();
            return {
              value: bodyOf(theirs),
              save: async (body) => {
                await resolution.mutateAsync({ id: theirs.id, version: theirs.version, body });
                onSaved();
              },
              load: () => {
                setDraft(null);
                setBase(null);
                save.reset();
              },
            };
          }}
        />
      ) : (
        isEditing &&
        save.error && (
          <Text size="sm" c="var(--tg-critical)" role="alert">
            {save.error.message}
          </Text>
        )
      )}
      <div ref={ref} className="dashboard-screen">
        {shown.cards.length === 0 ? (
          <section className="panel">
            <EmptyState
              title={<Trans>This dashboard is empty</Trans>}
              actions={
                isEditing
                  ? add
                  : mayChange && (
                      <Button onClick={() => setEdit('1')}>
                        <Trans>Edit</Trans>
                      </Button>
                    )
              }
            >
              <Trans>Add cards with values, charts, tables, states, controls and messages.</Trans>
            </EmptyState>
          </section>
        ) : (
          <DashboardContext value={context}>
            <Grid
              cards={shown.cards}
              {...(isEditing ? { onChange: (cards: Card[]) => change({ cards }), onEdit: setEdited } : {})}
            />
          </DashboardContext>
        )}
      </div>
      {isEditing && draft && (
        <Text size="xs" c="dimmed">
          <Trans>A new or changed card shows its data after the dashboard is saved.</Trans>
        </Text>
      )}
      {edited && (
        <CardEditor
          card={edited}
          isOfNode={shown.namespace === null}
          onClose={() => setEdited(null)}
          onSave={(card) => {
            change({ cards: placed(shown.cards, card) });
            setEdited(null);
          }}
        />
      )}
      {isSharing && <ShareLinks dashboard={stored} onClose={() => setSharing(false)} />}
      {isDeleting && (
        <ConfirmDeletion
          title={<Trans>Delete {stored.name || stored.id}?</Trans>}
          action={<Trans>Delete the dashboard</Trans>}
          call={{ path: objectPath(path, stored.id), ctl: `dashboards delete ${stored.id}` }}
          onClose={() => setDeleting(false)}
          invalidates={[[path]]}
          message={t`${stored.name || stored.id} was deleted.`}
          onDeleted={() => navigate('/dashboards')}
        >
          <Text size="sm">
            <Plural
              value={stored.cards.length}
              one="This deletes the dashboard with # card. Its share links end."
              other="This deletes the dashboard with # cards. Its share links end."
            />
          </Text>
        </ConfirmDeletion>
      )}
    </Page>
  );
}
